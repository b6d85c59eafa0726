// Linear layers, column block by column block. Weights are read in their own format: plain, one row per output [O][I];
// packed, [O / block][I / 2][block][2] of bf16 and [O / BLOCK][I][BLOCK] of others; or integers of few bits
// (few_bits.h).
#pragma once
#include <algorithm>

#include "few_bits.h"
#include "panel.h"
#include "product.h"
#include "team.h"

struct Linear {
    const void* weight;
    const void* bias;  // null: none
    int64_t num_in, num_out;
    int32_t block;       // of packed weights, 0: plain
    int32_t bits;        // of whole numbers, 0: bf16 or float
    // Of whole numbers, as FewBits has them:
    const void* scale;
    const void* least;
    int32_t group;
    int32_t has_halves;
};

namespace {

// Words of a block that are multiplied at once: as many as stay in the first cache if tiles return to them for few
// rows. For many rows, sums would be loaded and stored too often.
inline int64_t most_words(int64_t rows) { return tiles::HERE && rows <= 64 ? 64 : 128; }
constexpr int64_t MOST_ROWS_AT_ONCE = 512, LEAST_PANEL_ROWS = 96, MOST_PANEL_INPUTS = 1536;
// If rows are multiplied as floats: the inputs for which some columns stay in the first cache and rows in the second,
// and the number of rows from which it pays to convert these columns to floats first.
constexpr int64_t INPUTS_AT_ONCE = 256, MOST_FLOAT_ROWS = 192, LEAST_WIDENED_ROWS = 48;

inline int64_t num_blocks(const Linear& l) { return (l.num_out + BLOCK - 1) / BLOCK; }

// Rounds to the model's format, as torch does.
template <class T> INLINE vf kept(vf a) { return a; }
template <> INLINE vf kept<bf16>(vf a) { return as_float(left<16>(rounded(a))); }
template <> INLINE vf kept<f16>(vf a) { return to_half(a); }

// Rows of numbers, with the stride `row`.
template <class T> struct Matrix {
    T* at;
    int64_t row;
    T* operator[](int64_t r) const { return at + r * row; }
};

// Some rows as operands of products: unchanged and, if the weights need it, as floats or integers.
template <class T> struct Operand {
    Matrix<const T> x;
    Matrix<const float> floats;
    WholeRows whole;
};

template <class T>
void plain_block(const Linear& l, int64_t first, int n, const Matrix<const T>& x, int64_t rows, float* out) {
    constexpr int COLUMNS = 4;
    const auto* w = (const T*)l.weight;
    const auto dots = [&](auto num_rows, auto num_columns, int64_t r, int64_t c) {
        vf sums[num_rows.value][num_columns.value];
        for (auto& row : sums)
            for (vf& s : row) s = zero();
        for (int64_t i = 0; i < l.num_in; i += LANES) {
            const int left = int(std::min<int64_t>(LANES, l.num_in - i));
            vf xs[num_rows.value];
            for (int a = 0; a < num_rows.value; a++) xs[a] = load_part(x[r + a] + i, left);
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

// `product` for many rows: some columns at a time are converted to floats in a buffer.
template <class Mac>
void widened_product(long num_rows, int num_vectors, const uint32_t* a, long a_row, const void* b, long b_row, long num_steps,
                     float* c, long c_row, bool adds, const char* next) {
    constexpr int VECTORS = vectors_at_once(MOST_ROWS), COLUMNS = VECTORS * LANES;
    alignas(64) static thread_local uint32_t widened[INPUTS_AT_ONCE * COLUMNS];
    for (int v = 0; v + VECTORS <= num_vectors; v += VECTORS) {
        const char* from = (const char*)b + v * LANES * Mac::COLUMN_BYTES;
        uint32_t* to = widened;
        const long lines = next ? num_steps * VECTORS * LANES * Mac::COLUMN_BYTES / 64 : 0;
        for (long i = 0; i < lines; i++, next += 64) prefetch(next);
        for (long k = 0; k < num_steps; k++, from += b_row * Mac::COLUMN_BYTES)
            UNROLLED for (int part = 0; part < Mac::PARTS; part++, to += COLUMNS)
                UNROLLED for (int i = 0; i < VECTORS; i++)
                    store_words(to + i * LANES, Mac::columns(from + i * LANES * Mac::COLUMN_BYTES, part));
        product<Floats>(num_rows, VECTORS, a, a_row, widened, COLUMNS, num_steps * Mac::PARTS, c + v * LANES, c_row, adds);
    }
}

// Prefetches what is read next, finally from `next`.
template <class T>
void packed_block(const Linear& l, int64_t first, int n, const Operand<T>& in, int64_t rows, float* out, const void* next) {
    using Mac = typename Packed<T>::Mac;
    constexpr int INPUTS = Mac::PARTS * Mac::PER_WORD;  // per step
    constexpr bool widens = BY_FLOATS<T> && !std::is_same_v<T, float>;
    const uint32_t* a = BY_FLOATS<T> ? (const uint32_t*)in.floats.at : (const uint32_t*)in.x.at;
    const int64_t a_row = BY_FLOATS<T> ? in.floats.row : in.x.row / Mac::PER_WORD;
    const int64_t steps = l.num_in / INPUTS, most = BY_FLOATS<T> ? INPUTS_AT_ONCE / INPUTS : most_words(rows);
    for (int c = 0; c < n; c += l.block) {
        const char* w = (const char*)l.weight + (first + c) * steps * Mac::COLUMN_BYTES;
        const int64_t step_bytes = l.block * Mac::COLUMN_BYTES;
        for (int64_t k = 0; k < steps; k += most) {
            const bool is_last = next && c + l.block >= n && k + most >= steps;
            const auto multiply = widens && rows >= LEAST_WIDENED_ROWS ? widened_product<Mac> : product<Mac>;
            multiply(rows, l.block / LANES, a + k * Mac::PARTS, a_row, w + k * step_bytes, l.block,
                     std::min<int64_t>(most, steps - k), out + c, BLOCK, k > 0,
                     is_last ? (const char*)next : w + (k + most) * step_bytes);
        }
    }
}

// Returns where the weights of a block begin, if they are packed.
template <class T> const void* block_at(const Linear& l, int64_t block) {
    if (!l.block) return nullptr;
    return (const char*)l.weight + block * BLOCK * l.num_in * (l.bits ? l.bits : 8 * int64_t(sizeof(T))) / 8;
}

// Computes the columns `first ... first + n` of x W^T + b for x [rows][num_in]: out [rows][BLOCK]. `next` is read next,
// if known.
template <class T>
void linear_block(const Linear& l, int64_t first, int n, const Operand<T>& in, int64_t rows, float* out, const void* next) {
    if (l.bits) few_bits_block({l.weight, l.scale, l.least, l.bits, l.group, bool(l.has_halves)}, first, in.whole, rows, out);
    else if (l.block) packed_block(l, first, n, in, rows, out, next);
    else plain_block(l, first, n, in.x, rows, out);
    if (!l.bias) return;
    for (int64_t r = 0; r < rows; r++)
        for (int c = 0; c < n; c += LANES)
            store(out + r * BLOCK + c, load(out + r * BLOCK + c) + load_part((const T*)l.bias + first + c, n - c));
}

inline float* block_room(int i) {
    static thread_local Room rooms[2];
    return (float*)rooms[i].take(sizeof(float) * MOST_ROWS_AT_ONCE * BLOCK);
}

// Returns whether many rows of a layer are multiplied panel by panel.
inline bool in_panels(const Linear& l, int64_t rows) {
    return tiles::HERE && !l.bits && l.block == BLOCK && l.num_in % 32 == 0 &&
           l.num_in <= MOST_PANEL_INPUTS && rows >= LEAST_PANEL_ROWS;
}

// Computes one block of columns of one layer or of two, into `out`, which begins at its first column.
struct Columns {
    const Linear &left, &right;  // equal if there is only one
    int64_t first;
    int n;
    const void* next = nullptr;  // what is read next, if known
};

#if defined(__AMX_BF16__)
// Computes as many rows as form whole panels; returns their number. Whole cache lines of results bypass the caches,
// because reading them first would delay the products.
template <class Made>
int64_t panel_columns(const Columns& b, const Matrix<const bf16>& x, int64_t rows, const Matrix<bf16>& out, Made made) {
    const bool is_one = &b.left == &b.right, whole = b.n == BLOCK && uintptr_t(out.at) % 64 == 0 && out.row % 32 == 0;
    const int64_t words = b.left.num_in / 2, num_rows = rows / 32 * 32;
    const auto *left = (const uint32_t*)b.left.weight + b.first * words, *right = (const uint32_t*)b.right.weight + b.first * words;
    alignas(64) static thread_local bf16 halves[MOST_ROWS_AT_ONCE * LANES];
    const auto biased = [&](const Linear& l, vf sums, int64_t c) {
        return l.bias ? sums + load_part((const bf16*)l.bias + b.first + c, b.n - int(c)) : sums;
    };
    const auto put = [&](int64_t row, int64_t c, vf s, vf t) {
        bf16* to = out[row] + c;
        if (is_one) {
            s = biased(b.left, s, c);
            if (c + LANES < b.n) t = biased(b.right, t, c + LANES);
            if (whole) return stream(to, s, t);
            store_part(to, s, b.n - int(c));
            if (c + LANES < b.n) store_part(to + LANES, t, b.n - int(c) - LANES);
        } else {
            const vf m = made(biased(b.left, s, c), biased(b.right, t, c));
            if (!whole) return store_part(to, m, b.n - int(c));
            bf16* half = halves + row * LANES;
            if (c % (2 * LANES)) stream(to - LANES, load(half), m);
            else store(half, m);
        }
    };
    tiles::Panel<decltype(put)> panel((const uint32_t*)x.at, x.row / 2, num_rows, words, put);
    const int step = is_one ? 2 * LANES : LANES;
    for (int c = 0; c < b.n; c += step) {
        // Data behind this block, in the share of this one of two halves.
        const auto* behind = (c % (2 * LANES) ? right - LANES * words : left) + (BLOCK + c) * words;
        panel.multiply(left + c, (is_one ? left + LANES : right) + c, BLOCK, c, (const char*)behind, words * step / 16);
    }
    panel.finish();
    return num_rows;
}
#endif

// Computes x W^T + b of one layer, or the gated activation of two.
template <class T, class Made>
void make_columns(const Columns& b, Operand<T> in, int64_t rows, Matrix<T> out, Made made) {
    const bool is_one = &b.left == &b.right;
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<T, bf16>)
        if (in_panels(b.left, rows) && in_panels(b.right, rows)) {
            const int64_t done = panel_columns(b, in.x, rows, out, made);
            in.x.at = in.x[done], out.at = out[done], rows -= done;
        }
#endif
    if (!rows) return;
    float *sums = block_room(0), *others = block_room(1);
    linear_block(b.left, b.first, b.n, in, rows, sums, is_one ? b.next : block_at<T>(b.right, b.first / BLOCK));
    if (!is_one) linear_block(b.right, b.first, b.n, in, rows, others, b.next);
    for (int64_t r = 0; r < rows; r++)
        for (int c = 0; c < b.n; c += LANES) {
            const vf s = load(sums + r * BLOCK + c);
            store_part(out[r] + c, is_one ? s : made(s, load(others + r * BLOCK + c)), b.n - c);
        }
}

}  // namespace
