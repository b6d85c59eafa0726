#include "decode.h"

void decode_bfloat16(const Decoder& d, const Step& step, int num_threads) { decode<bf16>(d, step, num_threads); }

void multiply_bfloat16(const Linear& l, const void* x, int64_t rows, void* out, int num_threads) {
    multiply<bf16>(l, x, rows, out, num_threads);
}
