// A decoder of equal layers, and one step of it. The same records exist in records.py.
#pragma once
#include "attention.h"
#include "linear.h"

enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

struct Norm {
    const float* weight;  // null: no norm
    float eps;
};

struct DecoderLayer {
    Layer attention;
    Norm before_attention, of_queries, of_keys, before_mlp;
    Linear q, k, v, o, gate, up, down;
};

struct Decoder {
    const DecoderLayer* layers;
    int64_t num_layers, width, mlp_width, vocab_size;
    const void* embedding;  // [vocab_size][width]
    Norm last_norm;
    Linear head;
    const void *cos, *sin;  // [positions][rotary_width]
    int64_t rotary_width;
    int32_t activation, format;
};

// The layers `first ... end` of one step. From tokens, or if there are none from `hidden` [T][width], which the
// layers' result replaces; the logits of R rows are made if there are any.
struct Step {
    const Sequences* sequences;
    const int64_t *token, *position;  // [T]
    const int64_t* sampled;           // [R]
    void* hidden;
    void* logits;  // [R][vocab_size]
    int64_t first, end, num_sampled;
};
