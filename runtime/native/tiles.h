// Products by tiles (AMX): 16 x 16 sums in a register, from 16 rows of 32 bf16 and as many columns of pairs.
//
// A thread's tiles have a shape, which includes the number of rows of the last ones. The caller of products forgets the
// shape first (another library may have set one) and releases the tiles at the end, so that switches of threads need
// not save them.
#pragma once
#include "simd.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>

namespace tiles {

constexpr bool HERE = true;
constexpr int ROWS = 16, WORDS = 16;

struct alignas(64) Shape {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

inline int& upper_and_lower() {
    static thread_local int rows = 0;
    return rows;
}

inline void forget() { upper_and_lower() = 0; }

inline void release() {
    if (upper_and_lower()) _tile_release();
    forget();
}

// Sums are in tiles 0 to 3, rows in 4 and 5, columns in 6 and 7; `upper` rows in the first, `lower` in the second.
inline void take_shape(int upper, int lower) {
    const int wanted = upper * 100 + lower;
    if (upper_and_lower() == wanted) return;
    Shape shape;
    const int rows[] = {upper, upper, lower, lower, upper, lower, ROWS, ROWS};
    for (int i = 0; i < 8; i++) {
        shape.rows[i] = uint8_t(rows[i]);
        shape.row_bytes[i] = 64;
    }
    __asm__ volatile("" ::"r"(&shape) : "memory");  // gcc 12 assumes that only the first word is read
    _tile_loadconfig(&shape);
    upper_and_lower() = wanted;
}

// Multiplies one or two row tiles by one or two column tiles: at most 32 x 32 sums.
struct Sums {
    float* at;
    long row;  // in floats
    bool adds;
};

template <int DOWN, int ACROSS>
INLINE void sums_of(const uint32_t* a, long a_row, const uint32_t* b, long b_row, long num_words, const Sums& c,
                    const char* next, long lines) {
    const long down = ROWS * c.row;
    if (c.adds) {
        _tile_loadd(0, c.at, 4 * c.row);
        if (ACROSS > 1) _tile_loadd(1, c.at + 16, 4 * c.row);
        if (DOWN > 1) _tile_loadd(2, c.at + down, 4 * c.row);
        if (DOWN > 1 && ACROSS > 1) _tile_loadd(3, c.at + down + 16, 4 * c.row);
    } else {
        _tile_zero(0);
        if (ACROSS > 1) _tile_zero(1);
        if (DOWN > 1) _tile_zero(2);
        if (DOWN > 1 && ACROSS > 1) _tile_zero(3);
    }
    for (long k = 0; k < num_words; k += WORDS) {
        for (long i = 0; i < lines; i++) prefetch(next + (k / WORDS * lines + i) * 64);
        _tile_loadd(6, b + k * b_row, 4 * b_row);
        _tile_loadd(4, a + k, 4 * a_row);
        _tile_dpbf16ps(0, 4, 6);
        if (ACROSS > 1) _tile_loadd(7, b + k * b_row + 16, 4 * b_row);
        if (ACROSS > 1) _tile_dpbf16ps(1, 4, 7);
        if (DOWN > 1) _tile_loadd(5, a + k + ROWS * a_row, 4 * a_row);
        if (DOWN > 1) _tile_dpbf16ps(2, 5, 6);
        if (DOWN > 1 && ACROSS > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c.at, 4 * c.row);
    if (ACROSS > 1) _tile_stored(1, c.at + 16, 4 * c.row);
    if (DOWN > 1) _tile_stored(2, c.at + down, 4 * c.row);
    if (DOWN > 1 && ACROSS > 1) _tile_stored(3, c.at + down + 16, 4 * c.row);
}

// C[M][N] (+)= A[M][K] B[K][N] as `product` computes it, for whole tiles of words and vectors of 16 columns. Prefetches
// as much from `next` as B has, if it is set.
inline void product(long num_rows, int num_vectors, const uint32_t* a, long a_row, const uint32_t* b, long b_row,
                    long num_words, float* c, long c_row, bool adds, const char* next) {
    const long passes = (num_rows + 2 * ROWS - 1) / (2 * ROWS) * ((num_vectors + 1) / 2);
    const long lines = num_words * num_vectors, steps = num_words / WORDS;
    const long a_step = next ? (lines + passes * steps - 1) / (passes * steps) : 0;
    long fetched = 0;
    for (long r = 0; r < num_rows; r += 2 * ROWS) {
        const long left = num_rows - r, upper = left < ROWS ? left : ROWS;
        const long lower = left - upper < ROWS ? left - upper : ROWS;
        take_shape(int(upper), int(lower ? lower : upper));
        for (int v = 0; v < num_vectors; v += 2) {
            const Sums to{c + r * c_row + v * LANES, c_row, adds};
            const auto *rows = a + r * a_row, *columns = b + v * LANES;
            const long now = fetched < lines ? a_step : 0;
            const char* from = next + fetched * 64;
            const bool two = v + 1 < num_vectors;
            if (lower && two) sums_of<2, 2>(rows, a_row, columns, b_row, num_words, to, from, now);
            else if (lower) sums_of<2, 1>(rows, a_row, columns, b_row, num_words, to, from, now);
            else if (two) sums_of<1, 2>(rows, a_row, columns, b_row, num_words, to, from, now);
            else sums_of<1, 1>(rows, a_row, columns, b_row, num_words, to, from, now);
            fetched += now * steps;
        }
    }
}

// Requests tiles from the kernel, for all threads of this process.
inline bool allowed() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

}  // namespace tiles
#else
namespace tiles {
constexpr bool HERE = false;
inline void forget() {}
inline void release() {}
inline bool allowed() { return true; }
}  // namespace tiles
#endif
