// Decoder with equal attention in all layers, and one step of it. The same records exist in records.py.
//
// A layer adds the results of attention and MLP to the state x. The model determines which of the norms exist:
//     x += s * after_attention(attention(before_attention(x)))
//     x += s * after_mlp(mlp(before_mlp(x)))
// Llama has the norms before, OLMo 2 those after, Gemma 2 and 3 both; s, `residual_scale`, is 1 except in Granite.
#pragma once
#include "attention.h"
#include "linear.h"

// Gated activation: f(gate) up, or gpt-oss's min(gate, limit) sigmoid(alpha gate) (up + 1).
enum Gating : int32_t { SILU = 0, GELU_TANH = 1, CLAMPED = 2 };
// Pairs of numbers that are rotated together; PARTING_PAIRS stores all first numbers before all second ones.
enum Rotary : int32_t { HALVES = 0, PAIRS = 1, NO_TURN = 2, WIDE_HALVES = 3, PARTING_PAIRS = 4 };

struct Norm {
    const float* weight;  // null: no norm
    int64_t width;        // of one head, or of all together, for norms of queries and keys
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
    const float* bias;                  // added to scores to choose experts, not to weigh them; null: none
    const float* shared_gate;           // [width]: gate of the product of all rows; null: no gate
    float scale;                        // of the experts' weights
    int32_t score, is_normalised, rounds;  // `rounds`: rounds logits to the model's format
    // Experts are chosen only from the groups of neighbours whose best `num_compared` have the highest sums.
    int32_t num_groups, num_chosen_groups, num_compared;
};

// Products of all rows, of experts, or the sum of both: a missing one has no outputs, or no experts.
//
// With latent attention (DeepSeek-V2, 2024, section 2.1) `kv_a` makes a latent, and the common end of all heads' keys,
// the only part that is rotated. From the latent, `k` makes [beginning of its key, value] for each head, and there is
// no `v`. Queries come from the layer's input, or from a latent that `q_a` makes. The norms of queries and keys are
// those of the latents.
struct DecoderLayer {
    Layer attention;
    Norm before_attention, of_queries, of_keys, after_attention, before_mlp, after_mlp;
    Linear q, k, v, o, gate, up, down, q_a, kv_a;
    const float *cos, *sin;  // [positions][rotary_width]: pairs use the first half; wide halves use the whole width
    int32_t rotary;
    Experts experts;
};

struct Decoder {
    const DecoderLayer* layers;
    int64_t num_layers, width, mlp_width, vocab_size;
    int64_t num_experts, num_chosen;  // maximum over layers, at least one chosen expert per row
    const void* embedding;  // [vocab_size][width]
    Norm last_norm;
    Linear head;
    int64_t rotary_width;
    float embedding_scale, residual_scale;
    float logit_scale, logit_softcap;  // softcap 0: none
    float gate_alpha, gate_limit;
    int32_t gating, has_whole, format;
};

// Layers `first ... end` of one step. The input is tokens or, without tokens, `hidden` [T][width], which the layers'
// result replaces; logits are computed for R rows.
struct Step {
    const Sequences* sequences;
    const int64_t *token, *position;  // [T]
    const int64_t* sampled;           // [R]
    void* hidden;
    void* logits;  // [R][vocab_size]
    int64_t first, end, num_sampled;
};
