// Attention of few queries with keys and values in place. Scores by tiles (AMX): keys are the rows of the product and
// queries its columns, so that no key is packed. Values by vectors, because packing them takes three times as long as
// multiplying them by two queries. Without tiles, keys are transposed in registers just before they are multiplied. All
// sums equal those of `product`, bit for bit.
#pragma once
#include <type_traits>

#include "product.h"
#include "transpose.h"

#if defined(HAS_BF16)
constexpr int MOST_ROWS_IN_PLACE = 4, COLUMNS_IN_PLACE = 4 * LANES;
#endif

#if defined(__AMX_BF16__)
namespace tiles {

// ROWS keys, `row` bytes apart.
struct Keys {
    const void* at;
    long row;
};

// queries: [num_words][ROWS]; scores: for left's keys, then for right's, [2 ROWS][ROWS]. `meanwhile` is called in each
// step.
template <class Meanwhile>
INLINE void score_in_place(const Keys& left, const Keys& right, const uint32_t* queries, long num_words, float* scores,
                           Meanwhile meanwhile) {
    _tile_zero(0);
    _tile_zero(1);
    for (long k = 0; k < num_words; k += WORDS) {
        meanwhile();
        _tile_loadd(4, (const uint32_t*)left.at + k, left.row);
        _tile_loadd(6, queries + k * ROWS, 4 * ROWS);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, (const uint32_t*)right.at + k, right.row);
        _tile_dpbf16ps(1, 5, 6);
    }
    _tile_stored(0, scores, 4 * ROWS);
    _tile_stored(1, scores + ROWS * ROWS, 4 * ROWS);
}

// Returns a column of scores [LANES][ROWS].
INLINE vf column(const float* scores) {
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_ps(left<4>(lane), scores, 4);
}

// sums[R][COLUMNS_IN_PLACE] += weights V for 2 ROWS keys; value_at(i) is the address of these columns of a key's
// values. A word of weights belongs to two keys ROWS apart. As in a tile, the first ROWS keys and the others are summed
// separately, then added. `meanwhile` is called after each two keys.
template <int R, class ValueAt, class Meanwhile>
INLINE void add_values_in_place(ValueAt value_at, const uint32_t* weights, long weight_row, float* sums, long sum_row,
                                Meanwhile meanwhile) {
    constexpr int V = COLUMNS_IN_PLACE / LANES;
    const vi upper = set1_word(0xffff0000);
    const vi low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), high = add(low, set1_word(8));
    alignas(64) float first[R][ROWS], second[R][ROWS];
    vf a[R][V], b[R][V];  // for even and odd columns alternately
    for (int r = 0; r < R; r++) {
        const vi words = load_words(weights + r * weight_row);
        store(first[r], as_float(left<16>(words)));
        store(second[r], as_float(both(words, upper)));
        for (int v = 0; v < V; v++) a[r][v] = b[r][v] = zero();
    }
    for (int i = 0; i < ROWS; i++) {
        meanwhile();
        const auto *one = (const uint32_t*)value_at(i), *other = (const uint32_t*)value_at(ROWS + i);
        for (int v = 0; v < V; v += 2) {
            const vi x = load_words(one + v / 2 * LANES), y = load_words(other + v / 2 * LANES);
            for (int r = 0; r < R; r++) {
                a[r][v] = fma(set1(first[r][i]), as_float(left<16>(x)), a[r][v]);
                a[r][v + 1] = fma(set1(first[r][i]), as_float(both(x, upper)), a[r][v + 1]);
                b[r][v] = fma(set1(second[r][i]), as_float(left<16>(y)), b[r][v]);
                b[r][v + 1] = fma(set1(second[r][i]), as_float(both(y, upper)), b[r][v + 1]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v += 2) {
            const vf even = a[r][v] + b[r][v], odd = a[r][v + 1] + b[r][v + 1];
            float* to = sums + r * sum_row + v * LANES;
            store(to, load(to) + _mm512_permutex2var_ps(even, low, odd));
            store(to + LANES, load(to + LANES) + _mm512_permutex2var_ps(even, high, odd));
        }
}

}  // namespace tiles
#elif defined(HAS_BF16)
namespace vectors {

// Calls f with the number of rows as a constant.
template <class F> INLINE void with_rows(int rows, F f) {
    if (rows == 1) f(std::integral_constant<int, 1>());
    else if (rows == 2) f(std::integral_constant<int, 2>());
    else if (rows == 3) f(std::integral_constant<int, 3>());
    else f(std::integral_constant<int, MOST_ROWS_IN_PLACE>());
}

// scores[R][LANES] of LANES keys. `meanwhile` is called after each LANES words of a key.
template <int R, class Meanwhile>
INLINE void score_in_place(const uint32_t* const keys[LANES], const uint32_t* queries, long query_row, long num_words,
                           float* scores, long score_row, Meanwhile meanwhile) {
    vf sums[R];
    for (vf& sum : sums) sum = zero();
    for (long k = 0; k < num_words; k += LANES) {
        meanwhile();
        vi words[LANES];
        transposed(keys, k, words);
        for (int i = 0; i < LANES; i++)
            for (int r = 0; r < R; r++) sums[r] = Pairs::mac(sums[r], set1_word(queries[r * query_row + k + i]), words[i]);
    }
    for (int r = 0; r < R; r++) store(scores + r * score_row, sums[r]);
}

// sums[R][COLUMNS_IN_PLACE] += weights V for `num` keys; value_at(i) is the address of these columns of a key's values.
// A word of weights belongs to two neighbouring keys. `meanwhile` is called after each two keys.
template <int R, class ValueAt, class Meanwhile>
INLINE void add_values_in_place(ValueAt value_at, int num, const uint32_t* weights, long weight_row, float* sums,
                                long sum_row, Meanwhile meanwhile) {
    constexpr int V = COLUMNS_IN_PLACE / LANES;
    vf made[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) made[r][v] = load(sums + r * sum_row + v * LANES);
    for (int i = 0; i < num; i += 2) {
        meanwhile();
        const bool are_two = i + 1 < num;
        const auto *one = (const uint32_t*)value_at(i), *other = are_two ? (const uint32_t*)value_at(i + 1) : one;
        for (int v = 0; v < V; v += 2) {
            const vi a = load_words(one + v / 2 * LANES), b = are_two ? load_words(other + v / 2 * LANES) : set1_word(0);
            const vi low = interleaved<false>(a, b), high = interleaved<true>(a, b);
            for (int r = 0; r < R; r++) {
                const vi weight = set1_word(weights[r * weight_row + i / 2]);
                made[r][v] = Pairs::mac(made[r][v], weight, low);
                made[r][v + 1] = Pairs::mac(made[r][v + 1], weight, high);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(sums + r * sum_row + v * LANES, made[r][v]);
}

}  // namespace vectors
#endif
