// Linear layers, column block by column block. Weights are read where they lie: plain, one row an output [O][I];
// packed by oneDNN for pairs of bf16, [O / block][I / 2][block][2]; or whole numbers of few bits (few_bits.h).
#pragma once
#include <algorithm>

#include "few_bits.h"
#include "product.h"
#include "team.h"

struct Linear {
    const void* weight;
    const void* bias;  // null: none
    int64_t num_in, num_out;
    int32_t block;       // of packed weights, 0: plain
    int32_t bits;        // of whole numbers, 0: bf16 or float
    const float* scale;  // of whole numbers: [O / BLOCK][I / GROUP][BLOCK]
};

namespace {

constexpr int MOST_WORDS = 128;

inline int64_t num_blocks(const Linear& l) { return (l.num_out + BLOCK - 1) / BLOCK; }

// As torch gives it: rounded to the model's format.
template <class T> INLINE vf kept(vf a) { return a; }
template <> INLINE vf kept<bf16>(vf a) { return as_float(left<16>(rounded(a))); }

template <class T> void plain_block(const Linear& l, int64_t first, int n, const T* x, int64_t rows, float* out) {
    constexpr int COLUMNS = 4;
    const auto* w = (const T*)l.weight;
    const auto dots = [&](auto num_rows, auto num_columns, int64_t r, int64_t c) {
        vf sums[num_rows.value][num_columns.value];
        for (auto& row : sums)
            for (vf& s : row) s = zero();
        for (int64_t i = 0; i < l.num_in; i += LANES) {
            const int left = int(std::min<int64_t>(LANES, l.num_in - i));
            vf xs[num_rows.value];
            for (int a = 0; a < num_rows.value; a++) xs[a] = load_part(x + (r + a) * l.num_in + i, left);
            for (int b = 0; b < num_columns.value; b++) {
                const vf ws = load_part(w + (first + c + b) * l.num_in + i, left);
                for (int a = 0; a < num_rows.value; a++) sums[a][b] = fma(xs[a], ws, sums[a][b]);
            }
        }
        for (int a = 0; a < num_rows.value; a++)
            for (int b = 0; b < num_columns.value; b++) out[(r + a) * BLOCK + c + b] = sum(sums[a][b]);
    };
    using One = std::integral_constant<int, 1>;
    using Some = std::integral_constant<int, COLUMNS>;
    for (int64_t r = 0; r < rows;)
        if (rows - r >= COLUMNS) {
            int c = 0;
            for (; c + COLUMNS <= n; c += COLUMNS) dots(Some(), Some(), r, c);
            for (; c < n; c++) dots(Some(), One(), r, c);
            r += COLUMNS;
        } else {
            int c = 0;
            for (; c + COLUMNS <= n; c += COLUMNS) dots(One(), Some(), r, c);
            for (; c < n; c++) dots(One(), One(), r, c);
            r++;
        }
}

inline void packed_block(const Linear& l, int64_t first, int n, const bf16* x, int64_t rows, float* out) {
    const int64_t words = l.num_in / 2;
    for (int c = 0; c < n; c += l.block) {
        const auto* w = (const uint32_t*)l.weight + (first + c) * words;
        for (int64_t k = 0; k < words; k += MOST_WORDS)
            product<Pairs>(rows, l.block / LANES, (const uint32_t*)x + k, words, w + k * l.block, l.block,
                           std::min<int64_t>(MOST_WORDS, words - k), out + c, BLOCK, k > 0,
                           {nullptr, (const char*)(w + (k + MOST_WORDS) * l.block)});
    }
}

// Group by group: made into bf16 in a core's own cache, multiplied, and the sums scaled.
inline void few_bits_block(const Linear& l, int64_t first, const bf16* x, int64_t rows, float* out) {
    alignas(64) static thread_local uint32_t words[GROUP / 2 * BLOCK];
    const int64_t groups = l.num_in / GROUP, group_bytes = GROUP * BLOCK / 8 * l.bits;
    const auto* w = (const char*)l.weight + first / BLOCK * groups * group_bytes;
    const float* scale = l.scale + first * groups;
    for (int64_t g = 0; g < groups; g++) {
        if (l.bits == 8) unpack_bytes((const uint16_t*)(w + g * group_bytes), words);
        else unpack_four_bits((const uint32_t*)(w + g * group_bytes), words);
        product<Pairs>(rows, BLOCK / LANES, (const uint32_t*)x + g * GROUP / 2, l.num_in / 2, words, BLOCK, GROUP / 2,
                       out, BLOCK, g > 0, {scale + g * BLOCK, nullptr});
    }
}

// The columns `first ... first + n` of x W^T + b for x [rows][num_in]: out [rows][BLOCK].
template <class T> void linear_block(const Linear& l, int64_t first, int n, const T* x, int64_t rows, float* out) {
    if constexpr (std::is_same_v<T, bf16>) {
        if (l.bits) few_bits_block(l, first, x, rows, out);
        else if (l.block) packed_block(l, first, n, x, rows, out);
        else plain_block(l, first, n, x, rows, out);
    } else {
        plain_block(l, first, n, x, rows, out);
    }
    if (!l.bias) return;
    for (int64_t r = 0; r < rows; r++)
        for (int c = 0; c < n; c += LANES) {
            const vf bias = load_part((const T*)l.bias + first + c, n - c);
            store(out + r * BLOCK + c, load(out + r * BLOCK + c) + bias);
        }
}

}  // namespace
