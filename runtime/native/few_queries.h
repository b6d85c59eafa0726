// Scores of few queries by keys that stay where they are, by tiles (AMX): keys are the rows of the product and queries
// its columns, so that no key is packed. A score's sum is that of `product`, bit by bit.
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
namespace tiles {

// ROWS keys, `row` bytes apart.
struct Keys {
    const void* at;
    long row;
};

// queries: [num_words][ROWS]; scores: of left's keys, then of right's, [2 ROWS][ROWS]. `meanwhile` is called with each
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

// A column of scores [LANES][ROWS].
INLINE vf column(const float* scores) {
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_ps(left<4>(lane), scores, 4);
}

}  // namespace tiles
#endif
