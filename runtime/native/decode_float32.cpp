#include "decode.h"

void decode_float32(const Decoder& d, const Step& step, int num_threads) { decode<float>(d, step, num_threads); }

void multiply_float32(const Linear& l, const void* x, int64_t rows, void* out, int num_threads) {
    multiply<float>(l, x, rows, out, num_threads);
}
