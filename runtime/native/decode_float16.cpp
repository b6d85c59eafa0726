#include "decode.h"

void decode_float16(const Decoder& d, const Step& step, int num_threads) { decode<f16>(d, step, num_threads); }

void multiply_float16(const Linear& l, const void* x, int64_t rows, void* out, int num_threads) {
    multiply<f16>(l, x, rows, out, num_threads);
}
