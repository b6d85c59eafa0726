// A decoder of equal layers, and one step of it. The same records exist in records.py.
//
// A layer adds to the state x what attention and products make of it. A model's facts choose which norms there are:
//     x += s * after_attention(attention(before_attention(x)))
//     x += s * after_mlp(mlp(before_mlp(x)))
// Llama has those before, OLMo 2 those after, Gemma 2 and 3 both; s, `residual_scale`, is 1 but for Granite.
#pragma once
#include "attention.h"
#include "linear.h"

enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };
enum Rotary : int32_t { HALVES = 0, PAIRS = 1, NO_TURN = 2 };  // what is turned against what

struct Norm {
    const float* weight;  // null: no norm
    int64_t width;        // of a head or of all of them, for those of queries and keys
    float eps;
};

struct DecoderLayer {
    Layer attention;
    Norm before_attention, of_queries, of_keys, after_attention, before_mlp, after_mlp;
    Linear q, k, v, o, gate, up, down;
    const float *cos, *sin;  // [positions][rotary_width], of which pairs take the first half
    int32_t rotary;
};

struct Decoder {
    const DecoderLayer* layers;
    int64_t num_layers, width, mlp_width, vocab_size;
    const void* embedding;  // [vocab_size][width]
    Norm last_norm;
    Linear head;
    int64_t rotary_width;
    float embedding_scale, residual_scale;
    float logit_scale, logit_softcap;  // a cap of 0 is none
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
