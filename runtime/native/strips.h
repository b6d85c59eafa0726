// Attention of many rows over one tile of keys by tiles (AMX), 32 rows at a time.
//
// While scores of some rows are computed, and values are added to others, the rows between them are weighed, row by row
// between the products: tiles and vectors work at once. Scores and weights stay in the first cache; keys and values are
// streamed past it. A row's result equals that of `product` followed by weighing, bit for bit.
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
namespace tiles {

// Words are pairs of bf16; the strides of rows are in words or floats.
struct Tiled {
    const uint32_t *queries, *keys, *values;
    long query_row, key_row, value_row;
    long key_words;  // a multiple of WORDS
    long num_keys, num_values;  // multiples of 32
    float *scores, *sums;  // scores: two times 32 rows
    uint32_t* weights;  // two times 32 rows
    long score_row, weight_row, sum_row;
};

// `weigh(row, scores, weights)` computes a row's weights from its scores and prepares its sums.
template <class Weigh> class Strips {
  public:
    static constexpr long HIGH = 2 * ROWS;

    Strips(const Tiled& t, Weigh weigh) : t_(t), weigh_(weigh) { take_shape(ROWS, ROWS); }

    // num_rows: a multiple of HIGH.
    void attend(long num_rows) {
        const long turns = t_.num_keys / HIGH * (t_.key_words / WORDS) + t_.num_values / HIGH * (t_.num_keys / HIGH);
        rows_a_turn_ = (HIGH + turns - 1) / turns;
        before_ = scores_of(1), before_row_ = t_.score_row;  // no previous block
        const long strips = num_rows / HIGH;
        for (long i = -1; i <= strips; i++) {
            weighed_ = i, next_ = i >= 0 && i < strips ? 0 : HIGH;
            if (i + 1 < strips) make_scores(i + 1);
            if (i > 0) add_values(i - 1);
            else if (i + 1 == strips) put();  // the only strip's scores are weighed next
            weigh_some(HIGH);
        }
        put();
    }

  private:
    float* scores_of(long strip) const { return t_.scores + strip % 2 * HIGH * t_.score_row; }
    uint32_t* weights_of(long strip) const { return t_.weights + strip % 2 * HIGH * t_.weight_row; }

    INLINE void make_scores(long strip) {
        const uint32_t* queries = t_.queries + strip * HIGH * t_.query_row;
        for (long key = 0; key < t_.num_keys; key += HIGH)
            block<false>(queries, t_.query_row, t_.keys + key, t_.key_row, t_.key_words / WORDS, scores_of(strip) + key,
                         t_.score_row);
    }

    INLINE void add_values(long strip) {
        float* sums = t_.sums + strip * HIGH * t_.sum_row;
        for (long v = 0; v < t_.num_values; v += HIGH)
            block<true>(weights_of(strip), t_.weight_row, t_.values + v, t_.value_row, t_.num_keys / HIGH, sums + v,
                        t_.sum_row);
    }

    INLINE void weigh_some(long num) {
        for (; num > 0 && next_ < HIGH; num--, next_++)
            weigh_(weighed_ * HIGH + next_, scores_of(weighed_) + next_ * t_.score_row,
                   weights_of(weighed_) + next_ * t_.weight_row);
    }

    INLINE void put() { put_upper_left(), put_upper_right(), put_lower_left(), put_lower_right(); }
    INLINE void put_upper_left() { _tile_stored(0, before_, 4 * before_row_); }
    INLINE void put_upper_right() { _tile_stored(1, before_ + ROWS, 4 * before_row_); }
    INLINE void put_lower_left() { _tile_stored(2, before_ + ROWS * before_row_, 4 * before_row_); }
    INLINE void put_lower_right() { _tile_stored(3, before_ + ROWS * before_row_ + ROWS, 4 * before_row_); }

    // Computes 32 x 32 sums; its first step stores those of the previous block.
    template <bool ADDS>
    INLINE void block(const uint32_t* a, long a_row, const uint32_t* b, long b_row, long steps, float* c, long c_row) {
        const uint32_t* lower = a + ROWS * a_row;
        _tile_stream_loadd(6, b, 4 * b_row);
        _tile_loadd(4, a, 4 * a_row);
        put_upper_left();
        if (ADDS) _tile_loadd(0, c, 4 * c_row);
        else _tile_zero(0);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, b + ROWS, 4 * b_row);
        put_upper_right();
        if (ADDS) _tile_loadd(1, c + ROWS, 4 * c_row);
        else _tile_zero(1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower, 4 * a_row);
        put_lower_left();
        if (ADDS) _tile_loadd(2, c + ROWS * c_row, 4 * c_row);
        else _tile_zero(2);
        _tile_dpbf16ps(2, 5, 6);
        put_lower_right();
        if (ADDS) _tile_loadd(3, c + ROWS * c_row + ROWS, 4 * c_row);
        else _tile_zero(3);
        _tile_dpbf16ps(3, 5, 7);
        weigh_some(rows_a_turn_);
        for (long i = 1; i < steps; i++) {
            a += WORDS, lower += WORDS, b += WORDS * b_row;
            _tile_stream_loadd(6, b, 4 * b_row);
            _tile_loadd(4, a, 4 * a_row);
            _tile_dpbf16ps(0, 4, 6);
            _tile_stream_loadd(7, b + ROWS, 4 * b_row);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, lower, 4 * a_row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            weigh_some(rows_a_turn_);
        }
        before_ = c, before_row_ = c_row;
    }

    const Tiled t_;
    Weigh weigh_;
    float* before_;
    long before_row_, weighed_ = 0, next_ = 0, rows_a_turn_ = 0;
};

}  // namespace tiles
#endif
