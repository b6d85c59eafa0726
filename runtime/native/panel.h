// Products of many rows by tiles (AMX): 32 rows by 32 columns at a time.
//
// The unit multiplies a tile in the time in which the first cache delivers one, and has to wait for the second cache.
// So the weights of 32 columns and MOST_WORDS inputs are copied, tile by tile, to a place where they stay in the first
// cache; rows are streamed from the second, with loads that evict nothing from the first. Sums are stored while the
// next block begins, and processed between its products. A row's sums equal those of `product`, bit for bit.
#pragma once
#include "team.h"
#include "tiles.h"

#if defined(__AMX_BF16__)
namespace tiles {

// `put(row, column, sums, sums of the right tile)` is called with each row's sums of 2 x 16 columns.
template <class Put> class Panel {
  public:
    static constexpr long HIGH = 2 * ROWS, MOST_ROWS = 512;

    // num_rows: at most MOST_ROWS, a multiple of HIGH, at least twice that; num_words: a multiple of WORDS. Rows have
    // the stride x_row in words, best not a power of two.
    Panel(const uint32_t* x, long x_row, long num_rows, long num_words, Put put)
        : x_(x), x_row_(x_row), num_rows_(num_rows), num_words_(num_words), put_(put) {
        static thread_local Room rooms[2];
        weights_ = (uint32_t*)rooms[0].take(4 * MOST_WORDS * HIGH);
        sums_ = (float*)rooms[1].take(4 * (MOST_ROWS / HIGH + 1) * BLOCK_SUMS);
        before_ = sums_ + MOST_ROWS / HIGH * BLOCK_SUMS;  // no previous block
        take_shape(ROWS, ROWS);
    }

    // Multiplies 16 columns from `left` and 16 from `right`, with the stride b_row; prefetches num_lines from `next`.
    void multiply(const uint32_t* left, const uint32_t* right, long b_row, long column, const char* next, long num_lines) {
        const long chunks = (num_words_ + MOST_WORDS - 1) / MOST_WORDS;
        const long chunk = (num_words_ / chunks + WORDS - 1) / WORDS * WORDS;
        const long blocks = num_rows_ / HIGH * ((num_words_ + chunk - 1) / chunk);
        const long a_block = next ? (num_lines + blocks - 1) / blocks : 0;
        for (long k = 0; k < num_words_; k += chunk) {
            const long words = num_words_ - k < chunk ? num_words_ - k : chunk;
            copy(left + k * b_row, right + k * b_row, b_row, words);
            for (long row = 0; row < num_rows_; row += HIGH) {
                float* sums = sums_ + row / HIGH * BLOCK_SUMS;
                const auto* x = x_ + row * x_row_ + k;
                if (k) add_block<true>(x, words / WORDS, sums, next, a_block);
                else add_block<false>(x, words / WORDS, sums, next, a_block);
                if (next) next += a_block * 64;
                if (k + words >= num_words_) ready_ = sums, row_ = row, column_ = column, num_put_ = 0;
            }
        }
    }

    // Stores the last block's sums, which ends the panel.
    void finish() {
        _tile_stored(0, before_, 64);
        _tile_stored(1, before_ + TILE_SUMS, 64);
        _tile_stored(2, before_ + 2 * TILE_SUMS, 64);
        _tile_stored(3, before_ + 3 * TILE_SUMS, 64);
        put_rows(HIGH);
        _mm_sfence();  // results may have bypassed the caches
    }

  private:
    static constexpr long MOST_WORDS = 256, TILE_SUMS = ROWS * LANES, BLOCK_SUMS = 4 * TILE_SUMS;

    void copy(const uint32_t* left, const uint32_t* right, long b_row, long words) {
        for (long k = 0; k < words; k++) {
            uint32_t* to = weights_ + k / WORDS * (2 * WORDS * LANES) + k % WORDS * LANES;
            store_words(to, load_words(left + k * b_row));
            store_words(to + WORDS * LANES, load_words(right + k * b_row));
        }
    }

    INLINE void put_rows(long num) {
        for (; num > 0 && num_put_ < HIGH; num--, num_put_++) {
            const float* sums = ready_ + num_put_ / ROWS * (2 * TILE_SUMS) + num_put_ % ROWS * LANES;
            put_(row_ + num_put_, column_, load(sums), load(sums + TILE_SUMS));
        }
    }

    // Computes one block of sums; its first step stores those of the previous block.
    template <bool ADDS> INLINE void add_block(const uint32_t* x, long steps, float* sums, const char* next, long lines) {
        const uint32_t *lower = x + ROWS * x_row_, *w = weights_;
        const long rows_a_step = steps > 1 ? (HIGH + steps - 2) / (steps - 1) : 0;
        const long lines_a_step = steps > 1 ? (lines + steps - 2) / (steps - 1) : 0;
        _tile_loadd(6, w, 64);
        _tile_stream_loadd(4, x, 4 * x_row_);
        _tile_stored(0, before_, 64);
        if (ADDS) _tile_loadd(0, sums, 64);
        else _tile_zero(0);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + WORDS * LANES, 64);
        _tile_stored(1, before_ + TILE_SUMS, 64);
        if (ADDS) _tile_loadd(1, sums + TILE_SUMS, 64);
        else _tile_zero(1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, lower, 4 * x_row_);
        _tile_stored(2, before_ + 2 * TILE_SUMS, 64);
        if (ADDS) _tile_loadd(2, sums + 2 * TILE_SUMS, 64);
        else _tile_zero(2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_stored(3, before_ + 3 * TILE_SUMS, 64);
        if (ADDS) _tile_loadd(3, sums + 3 * TILE_SUMS, 64);
        else _tile_zero(3);
        _tile_dpbf16ps(3, 5, 7);
        for (long i = 1; i < steps; i++) {
            x += WORDS, lower += WORDS, w += 2 * WORDS * LANES;
            _tile_loadd(6, w, 64);
            _tile_stream_loadd(4, x, 4 * x_row_);
            for (long j = 0; j < lines_a_step; j++) prefetch(next + ((i - 1) * lines_a_step + j) * 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w + WORDS * LANES, 64);
            _tile_dpbf16ps(1, 4, 7);
            put_rows(rows_a_step);
            _tile_stream_loadd(5, lower, 4 * x_row_);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        put_rows(HIGH);
        before_ = sums;
    }

    const uint32_t* x_;
    const long x_row_, num_rows_, num_words_;
    Put put_;
    uint32_t* weights_;
    float *sums_, *before_, *ready_ = nullptr;
    long row_ = 0, column_ = 0, num_put_ = HIGH;
};

}  // namespace tiles
#endif
