// Products of rows with packed columns: C[M][N] (+)= A[M][K] B[K][N].
//
// B is stored as its number format is packed (below), one step of K after another. A consists of words of 32 bits:
// floats, or two bf16 that are neighbours along K if the CPU multiplies those. A row's sums are computed in the order
// of K whatever the other rows are and however many are multiplied at once, so that its result never depends on them.
#pragma once
#include <algorithm>
#include <type_traits>

#include "simd.h"
#include "tiles.h"

// How columns are multiplied: a step of K has PARTS words of A for each row, and COLUMN_BYTES of B for each column.
struct Floats {
    static constexpr int PARTS = 1, COLUMN_BYTES = 4, PER_WORD = 1;
    static INLINE vi columns(const char* b, int) { return load_words((const uint32_t*)b); }
    static INLINE vf mac(vf sum, vi a, vi b) { return fma(as_float(a), as_float(b), sum); }
};
struct Halves : Floats {
    static constexpr int COLUMN_BYTES = 2;
    static INLINE vi columns(const char* b, int) { return as_int(load((const f16*)b)); }
};
// Words of two bf16 if the CPU does not multiply them: each is converted to float.
struct WidenedPairs : Floats {
    static constexpr int PARTS = 2;
    static INLINE vi columns(const char* b, int part) {
        const vi words = load_words((const uint32_t*)b);
        return part ? both(words, set1_word(0xffff0000)) : left<16>(words);
    }
};
#if defined(HAS_BF16)
struct Pairs : Floats {
    static constexpr int PER_WORD = 2;
    static INLINE vf mac(vf sum, vi a, vi b) { return add_pair_products(sum, a, b); }
};
#else
using Pairs = WidenedPairs;
#endif

// How packed weights of a number format are multiplied, and whether rows are converted to floats first.
template <class T> struct Packed { using Mac = Floats; };
template <> struct Packed<bf16> { using Mac = Pairs; };
template <> struct Packed<f16> { using Mac = Halves; };
template <class T> constexpr bool BY_FLOATS = Packed<T>::Mac::PER_WORD == 1;

// Numbers of rows and vectors whose sums fill the registers: VECTORS of MOST_VECTORS for `rows`, so many that a sum is
// ready before the next addition to it.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 6, MOST_VECTORS = 4;
constexpr int vectors_at_once(long) { return 4; }
#elif defined(__aarch64__)
constexpr int MOST_ROWS = 6, MOST_VECTORS = 8;
constexpr int vectors_at_once(long rows) { return rows == 1 ? 8 : 4; }
#else
constexpr int MOST_ROWS = 6, MOST_VECTORS = 8;
constexpr int vectors_at_once(long rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : rows == 4 ? 3 : 2; }
#endif

// `lines` of `next` are prefetched in each step. Loops are unrolled before compilers assign registers.
template <class Mac, int ROWS, int VECTORS>
__attribute__((noinline)) void product_tile(const uint32_t* a, long a_row, const char* b, long b_row, long num_steps, float* c, long c_row,
                         bool adds, const char* next, long lines) {
    vf sums[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < VECTORS; v++) sums[r][v] = adds ? load(c + r * c_row + v * LANES) : zero();
    for (long k = 0; k < num_steps; k++) {
        for (long i = 0; i < lines; i++) prefetch(next + (k * lines + i) * 64);
        UNROLLED for (int part = 0; part < Mac::PARTS; part++) {
            vi columns[VECTORS];
            UNROLLED for (int v = 0; v < VECTORS; v++)
                columns[v] = Mac::columns(b + (k * b_row + v * LANES) * Mac::COLUMN_BYTES, part);
            UNROLLED for (int r = 0; r < ROWS; r++) {
                const vi word = set1_word(a[r * a_row + k * Mac::PARTS + part]);
                UNROLLED for (int v = 0; v < VECTORS; v++) sums[r][v] = Mac::mac(sums[r][v], word, columns[v]);
            }
        }
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < VECTORS; v++) store(c + r * c_row + v * LANES, sums[r][v]);
}

template <class Mac, int ROWS, int VECTORS, class... Rest>
void product_rows(long n, Rest... rest) {
    if constexpr (ROWS > 1)
        if (n < ROWS) return product_rows<Mac, ROWS - 1, VECTORS>(n, rest...);
    if constexpr (ROWS * VECTORS <= MOST_ROWS * vectors_at_once(MOST_ROWS)) product_tile<Mac, ROWS, VECTORS>(rest...);
}

template <class Mac, int VECTORS>
void product_columns(long num_rows, const uint32_t* a, long a_row, const char* b, long b_row, long num_steps,
                            float* c, long c_row, bool adds, const char* next) {
    const long passes = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
    const long step_lines = (Mac::COLUMN_BYTES * VECTORS * LANES + 63) / 64;
    const long lines = next ? (step_lines + passes - 1) / passes : 0;
    for (long r = 0, n, pass = 0, fetched = 0; r < num_rows; r += n, pass++, fetched += lines) {
        n = (num_rows - r + passes - pass - 1) / (passes - pass);  // passes of equal size: with few rows, sums have to wait
        product_rows<Mac, MOST_ROWS, VECTORS>(n, a + r * a_row, a_row, b, b_row, num_steps, c + r * c_row, c_row, adds,
                                              next + fetched * num_steps * 64, fetched < step_lines ? lines : 0);
    }
}

// `num_vectors` vectors of columns are adjacent in B and C. Prefetches as much from `next` as B has, if it is set.
template <class Mac>
void product(long num_rows, int num_vectors, const uint32_t* a, long a_row, const void* b, long b_row, long num_steps,
             float* c, long c_row, bool adds, const char* next = nullptr) {
#if defined(__AMX_BF16__)
    // Tiles add in another order than vectors. So tiles compute the steps that fill whole tiles, however many steps a
    // call has, since that depends on the number of rows.
    if constexpr (std::is_same_v<Mac, Pairs>)
        if (const long whole = num_steps / tiles::WORDS * tiles::WORDS) {
            tiles::product(num_rows, num_vectors, a, a_row, (const uint32_t*)b, b_row, whole, c, c_row, adds, next);
            if (whole == num_steps) return;
            const long done = whole * b_row * Mac::COLUMN_BYTES;
            a += whole, b = (const char*)b + done, num_steps -= whole, adds = true;
            if (next) next += done;
        }
#endif
    const long passes = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
    const int most = passes ? vectors_at_once((num_rows + passes - 1) / passes) : MOST_VECTORS;
    int v = 0;
    const auto columns = [&](auto vectors) {
        if (most < vectors.value) return;
        for (; v + vectors.value <= num_vectors; v += vectors.value) {
            const long at = v * LANES * Mac::COLUMN_BYTES;
            product_columns<Mac, vectors.value>(num_rows, a, a_row, (const char*)b + at, b_row, num_steps, c + v * LANES,
                                                c_row, adds, next ? next + at * num_steps : nullptr);
        }
    };
    columns(std::integral_constant<int, MOST_VECTORS>());
    if (MOST_VECTORS > 4) columns(std::integral_constant<int, 4>()), columns(std::integral_constant<int, 3>());
    if (MOST_VECTORS > 2) columns(std::integral_constant<int, 2>());
    columns(std::integral_constant<int, 1>());
}
