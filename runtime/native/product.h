// Products of few rows with packed columns: C[M][N] (+)= A[M][K] B[K][N], all in words of 32 bits.
//
// A word is a float, or two neighbouring bf16 along K where the CPU multiplies those. A row's sums are made
// in the order of K whatever the other rows are, so that a row's result never depends on them.
#pragma once
#include <type_traits>

#include "simd.h"
#include "tiles.h"

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

// `lines` of `next` are fetched with each word.
template <class Mac, int ROWS, int VECTORS>
INLINE void product_tile(const uint32_t* a, long a_row, const uint32_t* b, long b_row, long num_words, float* c,
                         long c_row, bool adds, const char* next, long lines) {
    vf sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = adds ? load(c + r * c_row + v * LANES) : zero();
    for (long k = 0; k < num_words; k++) {
        for (long i = 0; i < lines; i++) _mm_prefetch(next + (k * lines + i) * 64, _MM_HINT_T1);
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
                            long num_words, float* c, long c_row, bool adds, const char* next) {
    const long passes = (num_rows + MOST_ROWS - 1) / MOST_ROWS, word_lines = (4 * b_row + 63) / 64;
    const long lines = next ? (word_lines + passes - 1) / passes : 0;
    for (long r = 0, n, pass = 0, fetched = 0; r < num_rows; r += n, pass++, fetched += lines) {
        n = (num_rows - r + passes - pass - 1) / (passes - pass);  // passes of equal size: few rows wait for their sums
        const long now = fetched < word_lines ? lines : 0;
        const char* from = next + fetched * num_words * 64;
#define ROWS(N)                                                                                                     \
    case N: product_tile<Mac, N, VECTORS>(a + r * a_row, a_row, b, b_row, num_words, c + r * c_row, c_row, adds, from,  \
                                          now);                                                                     \
        break
        switch (n) {
            ROWS(1); ROWS(2); ROWS(3);
#if defined(__AVX512F__)
            ROWS(4); ROWS(5);
#endif
            default: product_tile<Mac, MOST_ROWS, VECTORS>(a + r * a_row, a_row, b, b_row, num_words, c + r * c_row,
                                                           c_row, adds, from, now);
        }
#undef ROWS
    }
}

// `num_vectors` vectors of columns lie side by side in B and C. Fetches as much from `next` as B has, if there is any.
template <class Mac>
void product(long num_rows, int num_vectors, const uint32_t* a, long a_row, const uint32_t* b, long b_row,
             long num_words, float* c, long c_row, bool adds, const char* next = nullptr) {
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<Mac, Pairs>)
        if (num_words % tiles::WORDS == 0)
            return tiles::product(num_rows, num_vectors, a, a_row, b, b_row, num_words, c, c_row, adds, next);
#endif
    int v = 0;
    const auto columns = [&](auto vectors) {
        product_columns<Mac, vectors.value>(num_rows, a, a_row, b + v * LANES, b_row, num_words, c + v * LANES, c_row,
                                            adds, next);
        v += vectors.value, next = nullptr;  // fetched with the first columns
    };
    while (v + MOST_VECTORS <= num_vectors) columns(std::integral_constant<int, MOST_VECTORS>());
    while (v < num_vectors) columns(std::integral_constant<int, 1>());
}
