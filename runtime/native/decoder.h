// A decoder of layers whose attention is equal, and one step of it. The same records exist in records.py.
//
// A layer adds to the state x what attention and products make of it. A model's facts choose which norms there are:
//     x += s * after_attention(attention(before_attention(x)))
//     x += s * after_mlp(mlp(before_mlp(x)))
// Llama has those before, OLMo 2 those after, Gemma 2 and 3 both; s, `residual_scale`, is 1 but for Granite.
#pragma once
#include "attention.h"
#include "linear.h"

// What is made of a gate and what it opens: f(gate) up, or gpt-oss's min(gate, limit) sigmoid(alpha gate) (up + 1).
enum Gating : int32_t { SILU = 0, GELU_TANH = 1, CLAMPED = 2 };
// What is turned against what; pairs that part leave their first numbers before their second ones.
enum Rotary : int32_t { HALVES = 0, PAIRS = 1, NO_TURN = 2, WIDE_HALVES = 3, PARTING_PAIRS = 4 };

struct Norm {
    const float* weight;  // null: no norm
    int64_t width;        // of a head or of all of them, for those of queries and keys
    float eps;
};

struct Expert {
    Linear gate, up, down;
};

enum Score : int32_t { SOFTMAX = 0, SIGMOID = 1 };  // of a router's logits

struct Experts {
    const Expert* each;
    int64_t num, num_chosen;
    const float *router, *router_bias;  // [num][width], and [num] or null
    const float* bias;                  // of scores where experts are chosen, not where they are weighed; null: none
    const float* shared_gate;           // [width]: opens what all rows' products make; null: it is open
    float scale;                        // of weights
    int32_t score, is_normalised, rounds;  // the last: logits to the model's format
    // Only the best groups of neighbours are chosen from: those whose best `num_compared` have the highest sums.
    int32_t num_groups, num_chosen_groups, num_compared;
};

// Products of all rows, or of experts, or the sum of both: what there is none of has no outputs, and no experts.
//
// Latent attention (DeepSeek-V2, 2024, section 2.1) has `kv_a`: it makes a latent, and the end of all heads' keys, which
// alone is turned. Of the latent `k` makes each head's [beginning of its key, value], and there is no `v`. Queries come
// from the layer's input, or from a latent that `q_a` makes. The norms of queries and keys are those of the latents.
struct DecoderLayer {
    Layer attention;
    Norm before_attention, of_queries, of_keys, after_attention, before_mlp, after_mlp;
    Linear q, k, v, o, gate, up, down, q_a, kv_a;
    const float *cos, *sin;  // [positions][rotary_width]: pairs take its first half, wide halves are as wide as it
    int32_t rotary;
    Experts experts;
};

struct Decoder {
    const DecoderLayer* layers;
    int64_t num_layers, width, mlp_width, vocab_size;
    int64_t num_experts, num_chosen;  // the most of any layer, for one row at least one
    const void* embedding;  // [vocab_size][width]
    Norm last_norm;
    Linear head;
    int64_t rotary_width;
    float embedding_scale, residual_scale;
    float logit_scale, logit_softcap;  // a cap of 0 is none
    float gate_alpha, gate_limit;
    int32_t gating, has_whole, format;
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
