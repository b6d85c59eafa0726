// Products of few rows with packed columns: C[M][N] (+)= A[M][K] B[K][N], all in words of 32 bits.
//
// A word is a float, or two neighbouring bf16 along K where the CPU multiplies those. A row's sums are made
// in the order of K whatever the other rows are, so that a row's result never depends on them.
#pragma once
#include "simd.h"

struct Floats {
    static constexpr int PER_WORD = 1;
    static INLINE vf mac(vf sum, vi a, vi b) { return fma(as_float(a), as_float(b), sum); }
};
// Pairs of bf16 where the CPU does not multiply them: each half as the float that it is.
struct WidenedPairs {
    static constexpr int PER_WORD = 2;
    static INLINE vf upper(vi a) { return as_float(both(a, set1_word(0xffff0000))); }
    static INLINE vf mac(vf sum, vi a, vi b) {
        return fma(upper(a), upper(b), fma(as_float(left<16>(a)), as_float(left<16>(b)), sum));
    }
};
#if defined(__AVX512BF16__)
struct Pairs {
    static constexpr int PER_WORD = 2;
    static INLINE vf mac(vf sum, vi a, vi b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
};
#else
using Pairs = WidenedPairs;
#endif

// As many rows and vectors at once as there are registers for their sums.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 6, MOST_VECTORS = 4;
#else
constexpr int MOST_ROWS = 4, MOST_VECTORS = 2;
#endif

template <class Mac, int ROWS, int VECTORS>
INLINE void product_tile(const uint32_t* a, long a_row, const uint32_t* b, long b_row, long num_words, float* c,
                         long c_row, bool adds) {
    vf sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = adds ? load(c + r * c_row + v * LANES) : zero();
    for (long k = 0; k < num_words; k++) {
        vi columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) columns[v] = load_words(b + k * b_row + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            const vi word = set1_word(a[r * a_row + k]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] = Mac::mac(sums[r][v], word, columns[v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(c + r * c_row + v * LANES, sums[r][v]);
}

template <class Mac, int VECTORS>
INLINE void product_columns(long num_rows, const uint32_t* a, long a_row, const uint32_t* b, long b_row,
                            long num_words, float* c, long c_row, bool adds) {
    long r = 0;
    for (; r + MOST_ROWS <= num_rows; r += MOST_ROWS)
        product_tile<Mac, MOST_ROWS, VECTORS>(a + r * a_row, a_row, b, b_row, num_words, c + r * c_row, c_row, adds);
    a += r * a_row, c += r * c_row;
#define REST(N) \
    case N: return product_tile<Mac, N, VECTORS>(a, a_row, b, b_row, num_words, c, c_row, adds)
    switch (num_rows - r) { REST(1); REST(2); REST(3); REST(4); REST(5); }
#undef REST
}

// `num_vectors` vectors of columns lie side by side in B and C.
template <class Mac>
void product(long num_rows, int num_vectors, const uint32_t* a, long a_row, const uint32_t* b, long b_row,
             long num_words, float* c, long c_row, bool adds) {
    int v = 0;
    for (; v + MOST_VECTORS <= num_vectors; v += MOST_VECTORS)
        product_columns<Mac, MOST_VECTORS>(num_rows, a, a_row, b + v * LANES, b_row, num_words, c + v * LANES, c_row,
                                           adds);
    for (; v < num_vectors; v++)
        product_columns<Mac, 1>(num_rows, a, a_row, b + v * LANES, b_row, num_words, c + v * LANES, c_row, adds);
}
