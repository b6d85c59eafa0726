// Steps and single layers, in the number format that a record names.
#include "decoder.h"

void decode_float32(const Decoder&, const Step&, int);
void decode_bfloat16(const Decoder&, const Step&, int);
void decode_float16(const Decoder&, const Step&, int);
void multiply_float32(const Linear&, const void*, int64_t, void*, int);
void multiply_bfloat16(const Linear&, const void*, int64_t, void*, int);
void multiply_float16(const Linear&, const void*, int64_t, void*, int);

// Computes one step; returns when it is done.
extern "C" void sundog_decode(const Decoder* d, const Step* step, int32_t num_threads) {
    const auto decode = d->format == FLOAT32 ? decode_float32 : d->format == BFLOAT16 ? decode_bfloat16 : decode_float16;
    decode(*d, *step, num_threads);
}

// Computes one linear layer alone, from rows [T][num_in] of a format to [T][num_out].
extern "C" void sundog_linear(const Linear* l, const void* x, int64_t rows, void* out, int32_t format, int32_t num_threads) {
    const auto multiply =
        format == FLOAT32 ? multiply_float32 : format == BFLOAT16 ? multiply_bfloat16 : multiply_float16;
    multiply(*l, x, rows, out, num_threads);
}
