// Operations of a decoder on each row between its products, rounded to the model's format wherever torch rounds.
#pragma once
#include <vector>

#include "decoder.h"

namespace {

// out = norm(x) for one row; out may be x. Without a norm it is x itself.
template <class T> void norm_row(const T* x, const Norm& norm, T* out) {
    if (!norm.weight) return void(std::memcpy(out, x, sizeof(T) * size_t(norm.width)));
    vf squares = zero();
    for (int64_t i = 0; i < norm.width; i += LANES) {
        const vf a = load_part(x + i, int(std::min<int64_t>(LANES, norm.width - i)));
        squares = fma(a, a, squares);
    }
    const vf scale = set1(1 / std::sqrt(sum(squares) / float(norm.width) + norm.eps));
    for (int64_t i = 0; i < norm.width; i += LANES) {
        const int n = int(std::min<int64_t>(LANES, norm.width - i));
        store_part(out + i, kept<T>(load_part(x + i, n) * scale) * load_part(norm.weight + i, n), n);
    }
}

// x = x + s norm(more) for one row; overwrites `more`.
template <class T> void add_row(T* x, T* more, const Norm& norm, float s) {
    if (norm.weight) norm_row(more, norm, more);
    for (int64_t i = 0; i < norm.width; i += LANES) {
        const int n = int(std::min<int64_t>(LANES, norm.width - i));
        vf a = load_part(more + i, n);
        if (s != 1) a = kept<T>(a * set1(s));
        store_part(x + i, load_part(x + i, n) + a, n);
    }
}

// Copies the numbers of one row, scaled if required.
template <class T> void scale_row(const T* x, float s, T* out, int64_t width) {
    if (s == 1) return void(std::memcpy(out, x, sizeof(T) * size_t(width)));
    for (int64_t i = 0; i < width; i += LANES) {
        const int n = int(std::min<int64_t>(LANES, width - i));
        store_part(out + i, load_part(x + i, n) * set1(s), n);
    }
}

// Scales the logits of one row, and applies a soft cap.
template <class T> void finish_logits(T* x, const Decoder& d) {
    if (d.logit_scale != 1) scale_row(x, d.logit_scale, x, d.vocab_size);
    if (d.logit_softcap == 0) return;
    for (int64_t i = 0; i < d.vocab_size; i += LANES) {
        const int n = int(std::min<int64_t>(LANES, d.vocab_size - i));
        const vf part = kept<T>(load_part(x + i, n) * set1(1 / d.logit_softcap));
        store_part(x + i, kept<T>(tanh(part)) * set1(d.logit_softcap), n);
    }
}

// Applies a head's rotary embedding in place, to pairs i and i + half (Su et al., "RoFormer", 2021). Cosines and sines
// of the second half lie `second` behind those of the first; 0 if they are equal.
template <class T> void rotate(T* x, const float* cos, const float* sin, int64_t half, int64_t second) {
    for (int64_t i = 0; i < half; i += LANES) {
        const int n = int(std::min<int64_t>(LANES, half - i));
        const vf a = load_part(x + i, n), b = load_part(x + half + i, n);
        const vf ca = load_part(cos + i, n), cb = load_part(cos + second + i, n);
        const vf sa = load_part(sin + i, n), sb = load_part(sin + second + i, n);
        store_part(x + i, kept<T>(a * ca) - kept<T>(b * sa), n);
        store_part(x + half + i, kept<T>(b * cb) + kept<T>(a * sb), n);
    }
}

// The same for neighbouring pairs, which are stored apart or side by side.
template <class T> void rotate_pairs(T* x, const float* cos, const float* sin, int64_t width, bool part) {
    static thread_local std::vector<T> seconds;
    if (part) seconds.resize(size_t(width / 2));
    for (int64_t i = 0; i < width / 2; i += LANES) {
        const int n = int(std::min<int64_t>(LANES, width / 2 - i));
        T even[LANES], odd[LANES];
        for (int j = 0; j < n; j++) even[j] = x[2 * (i + j)], odd[j] = x[2 * (i + j) + 1];
        const vf a = load_part(even, n), b = load_part(odd, n), c = load_part(cos + i, n), s = load_part(sin + i, n);
        store_part(even, kept<T>(a * c) - kept<T>(b * s), n);
        store_part(odd, kept<T>(b * c) + kept<T>(a * s), n);
        if (part) std::copy(even, even + n, x + i), std::copy(odd, odd + n, &seconds[size_t(i)]);
        else for (int j = 0; j < n; j++) x[2 * (i + j)] = even[j], x[2 * (i + j) + 1] = odd[j];
    }
    if (part) std::copy(seconds.begin(), seconds.end(), x + width / 2);
}

template <class T> INLINE vf activated(vf x, int32_t activation) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>)
        if (activation == SILU) {  // in a third of the time, and accurate to 1 in 100,000
            const vf divisor = set1(1.f) + roughly_exp2(min(set1(126.f), x * set1(-1.44269504f)));
            const vf nearly = roughly_inverse(divisor);
            return kept<T>(x * nearly * (set1(2.f) - divisor * nearly));
        }
#endif
    if (activation == SILU) return kept<T>(x / (set1(1.f) + exp(zero() - x)));
    const vf inner = set1(0.7978845608f) * fma(set1(0.044715f) * x * x, x, x);
    return kept<T>(set1(.5f) * x * (set1(1.f) + tanh(inner)));
}

// Multiplies a gate's activation by the gated value, rounded as torch does.
template <class T> INLINE vf gated(vf gate, vf up, const Decoder& d) {
    gate = kept<T>(gate), up = kept<T>(up);
    if (d.gating != CLAMPED) return activated<T>(gate, d.gating) * up;
    const vf limit = set1(d.gate_limit), least = zero() - limit;
    gate = min(gate, limit), up = max(least, min(up, limit));
    const vf open = set1(1.f) / (set1(1.f) + exp(zero() - kept<T>(gate * set1(d.gate_alpha))));
    return kept<T>(gate * kept<T>(open)) * kept<T>(up + set1(1.f));
}

// Rotates the beginning of each head, in place.
template <class T> void turn_heads(const Decoder& d, const DecoderLayer& layer, int64_t position, T* heads, int num) {
    if (layer.rotary == NO_TURN) return;
    const float *cos = layer.cos + position * d.rotary_width, *sin = layer.sin + position * d.rotary_width;
    const int64_t wide = d.rotary_width, half = layer.rotary == WIDE_HALVES ? wide : wide / 2;
    const bool part = layer.rotary == PARTING_PAIRS;
    for (T* x = heads; num > 0; num--, x += layer.attention.key_width)
        if (part || layer.rotary == PAIRS) rotate_pairs(x, cos, sin, wide, part);
        else rotate(x, cos, sin, half, wide - half);
}

// Normalises and rotates one row's heads of the products' [q, k, v]; stores keys and values in their slot.
template <class T> void keep_heads(const Decoder& d, const DecoderLayer& layer, T* q, T* k, const T* v, int64_t slot,
                                   int64_t position) {
    const Layer& a = layer.attention;
    const auto turn = [&](T* heads, int num_heads, const Norm& norm) {
        if (norm.weight)
            for (int64_t at = 0; at < num_heads * a.key_width; at += norm.width) norm_row(heads + at, norm, heads + at);
        turn_heads(d, layer, position, heads, num_heads);
    };
    turn(q, a.num_heads, layer.of_queries);
    turn(k, a.num_key_heads, layer.of_keys);
    const int64_t keys = a.num_key_heads * a.key_width, values = a.num_key_heads * a.value_width;
    std::memcpy((T*)a.keys + slot * keys, k, sizeof(T) * size_t(keys));
    std::memcpy((T*)a.values + slot * values, v, sizeof(T) * size_t(values));
}

// The same for latent attention: queries are rotated at their ends, and `end` is the common end of all heads' keys.
template <class T> void keep_latent_heads(const Decoder& d, const DecoderLayer& layer, T* q, const T* kv, T* end, int64_t slot,
                                          int64_t position) {
    const Layer& a = layer.attention;
    const int64_t turned = d.rotary_width, beginning = a.key_width - turned;
    turn_heads(d, layer, position, q + beginning, a.num_heads);
    turn_heads(d, layer, position, end, 1);
    T *key = (T*)a.keys + slot * a.num_key_heads * a.key_width, *value = (T*)a.values + slot * a.num_key_heads * a.value_width;
    for (int head = 0; head < a.num_key_heads; head++, kv += beginning + a.value_width) {
        key = std::copy(end, end + turned, std::copy(kv, kv + beginning, key));
        value = std::copy(kv + beginning, kv + beginning + a.value_width, value);
    }
}

}  // namespace
