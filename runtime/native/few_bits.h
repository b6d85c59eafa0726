// Weights as whole numbers of 8 or 4 bits, with a scale for every GROUP inputs of an output, and their products.
//
// A product is one of whole numbers: a row's GROUP inputs are made numbers of 8 bits in units of their own. A group's
// sum is exact, whatever the order it is made in and whoever makes it, so that a row's result is the same beside any
// other rows and on any CPU.
//
// CPUs multiply bytes without a sign by bytes with one. Weights lie as the former, OFFSET more than they are (128 more
// those of 8 bits, 8 more those of 4), and a group's sum begins at -OFFSET times the sum of its inputs: with the weights
// -3 and 5 and the inputs 7 and -2, (125 x 7 + 133 x -2) - 128 x (7 - 2) = -31. The largest, 255 x 127 x GROUP, is far
// from 2^31 and below the 2^24 up to which a float is exact.
//
// Columns lie side by side in blocks of quads of inputs, [O / BLOCK][I / 4][BLOCK][4]: bytes, or half as many where a
// byte holds an input of one quad and of the next.
#pragma once
#include <algorithm>

#include "product.h"

namespace {

constexpr int64_t MOST_ROWS_WITHOUT_TILES = 4;
// As many rows and vectors at once as there are registers for their sums.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MOST_WHOLE_ROWS = 6, MOST_WHOLE_VECTORS = 4;
#else
constexpr int MOST_WHOLE_ROWS = 4, MOST_WHOLE_VECTORS = 2;
#endif
constexpr int BLOCK = 64, GROUP = 128, QUADS = GROUP / 4, QUAD_BYTES = 4 * BLOCK;
constexpr int AHEAD = 2 * GROUP * BLOCK;  // bytes between what is multiplied and what is fetched

// The unit of a row's group and the sum of its numbers.
struct Unit {
    float size;
    int32_t total;
};

// Some rows of inputs as whole numbers of 8 bits.
struct WholeRows {
    int8_t* at = nullptr;
    Unit* unit = nullptr;  // [rows][I / GROUP]
    int64_t num_in = 0;

    // Rows lie a cache line more apart than they are wide: that is a power of two often.
    int64_t row() const { return num_in + 64; }
    int64_t groups() const { return num_in / GROUP; }
    WholeRows from(int64_t r) const { return {at + r * row(), unit + r * groups(), num_in}; }
    template <class T> void take(int64_t r, const T* x) const;
};

// A group in units of a 127th of its largest; what is no number makes its unit none.
template <class T> void WholeRows::take(int64_t r, const T* x) const {
    constexpr float MOST = 127, LEAST_NUMBER = 1e-30f;
    int8_t* to = at + r * row();
    for (int64_t g = 0; g < groups(); g++, x += GROUP, to += GROUP) {
        vf most = zero(), none = zero(), total = zero();
        for (int i = 0; i < GROUP; i += LANES) {
            const vf a = load(x + i);
            most = max(most, max(a, zero() - a));
            none = fma(a, zero(), none);
        }
        const float largest_of_all = largest(most);
        const vf a_unit = set1(largest_of_all > LEAST_NUMBER ? MOST / largest_of_all : 0);
        for (int i = 0; i < GROUP; i += LANES) {
            const vi number = to_int(load(x + i) * a_unit);
            narrow(to + i, number);
            total = total + as_number(number);
        }
        unit[r * groups() + g] = {largest_of_all / MOST + sum(none), to_int(sum(total))};
    }
}

// One group of a block, and what becomes of it: out [rows][BLOCK] is more by it. Row and column have a unit each.
struct Group {
    const uint8_t* numbers;
    const float* scale;
    int offset;

    // Without a sign: the total of a group with what is no number is any number.
    INLINE vi begin(const Unit& unit) const { return set1_word(uint32_t(BYTES_LESS - offset) * uint32_t(unit.total)); }
    INLINE void put(vi sums, const Unit& unit, int column, float* out) const {
        const vf times = set1(unit.size) * load(scale + column);
        store(out + column, fma(as_number(sums), times, load(out + column)));
    }
};

// Some rows and VECTORS vectors of columns; fetches the block's next group of bytes if this is the first to read them.
template <int ROWS, int VECTORS>
INLINE void whole_tile(const Group& group, int column, const WholeRows& x, int64_t g, float* out, bool fetches) {
    const auto* numbers = group.numbers + 4 * column;
    const int ahead = fetches ? AHEAD : 0;  // what is here already costs nothing
    vi sums[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < VECTORS; v++) sums[r][v] = group.begin(x.unit[r * x.groups() + g]);
    for (int k = 0; k < QUADS; k++, numbers += QUAD_BYTES) {
        for (int i = 0; i < 4 * LANES * VECTORS; i += 64)
            prefetch(numbers + ahead + i);
        vi columns[VECTORS];
        UNROLLED for (int v = 0; v < VECTORS; v++) columns[v] = fewer(load_words((const uint32_t*)numbers + LANES * v));
        UNROLLED for (int r = 0; r < ROWS; r++) {
            uint32_t inputs;
            std::memcpy(&inputs, x.at + r * x.row() + g * GROUP + 4 * k, sizeof inputs);
            UNROLLED for (int v = 0; v < VECTORS; v++) sums[r][v] = add_byte_products(sums[r][v], columns[v], set1_word(inputs));
        }
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < VECTORS; v++)
            group.put(sums[r][v], x.unit[r * x.groups() + g], column + LANES * v, out + r * BLOCK);
}

inline void whole_product(const Group& group, const WholeRows& all, int64_t g, int64_t rows, float* out, bool fetches) {
    int64_t passes = (rows + MOST_WHOLE_ROWS - 1) / MOST_WHOLE_ROWS;
    for (int64_t r = 0, n; r < rows; r += n, passes--, fetches = false) {
        const WholeRows x = all.from(r);
        n = (rows - r + passes - 1) / passes;  // passes of equal size: few rows wait for their sums
        for (int c = 0; c < BLOCK; c += MOST_WHOLE_VECTORS * LANES) {
            float* to = out + r * BLOCK;
#define ROWS(N)                                                                       \
    case N: whole_tile<N, MOST_WHOLE_VECTORS>(group, c, x, g, to, fetches); break
            switch (n) {
                ROWS(1); ROWS(2); ROWS(3);
#if defined(__AVX512F__) || defined(__aarch64__)
                ROWS(4); ROWS(5);
#endif
                default: whole_tile<MOST_WHOLE_ROWS, MOST_WHOLE_VECTORS>(group, c, x, g, to, fetches);
            }
#undef ROWS
        }
    }
}

#if defined(__AMX_INT8__)
// The same by tiles, of 16 rows and twice 16 columns. What they come to is put away while the next are multiplied.
inline void whole_tiles(const Group& group, const WholeRows& all, int64_t g, int64_t rows, float* out, bool fetches) {
    constexpr int SUMS = tiles::ROWS * LANES, HALF = QUADS / 2 * QUAD_BYTES;
    alignas(64) static thread_local uint32_t sums[2][2][SUMS];  // of the left columns, and of the right
    const uint32_t* made = nullptr;
    const Unit* unit = nullptr;
    float* to = nullptr;
    int num_made = 0, made_column = 0, now = 0;
    const auto put = [&](int most) {
        for (; most > 0 && num_made > 0; most--, num_made--, made += LANES, unit += all.groups(), to += BLOCK)
            for (int right = 0; right < 2; right++)
                group.put(add(load_words(made + right * SUMS), group.begin(*unit)), *unit, made_column + right * LANES, to);
    };
    for (int64_t r = 0; r < rows; r += tiles::ROWS) {
        const int n = int(std::min<int64_t>(tiles::ROWS, rows - r));
        const int8_t* x = all.at + r * all.row() + g * GROUP;
        tiles::take_shape(n, n);
        for (int c = 0; c < BLOCK; c += 2 * LANES) {
            const auto* numbers = group.numbers + 4 * c;
            if (fetches)
                for (int k = 0; k < QUADS; k++) {
                    prefetch(numbers + AHEAD + k * QUAD_BYTES);
                    prefetch(numbers + AHEAD + k * QUAD_BYTES + 64);
                }
            _tile_loadd(6, numbers, QUAD_BYTES);
            _tile_loadd(4, x, all.row());
            _tile_zero(0);
            _tile_dpbsud(0, 4, 6);
            put(4);
            _tile_loadd(7, numbers + 4 * LANES, QUAD_BYTES);
            _tile_zero(1);
            _tile_dpbsud(1, 4, 7);
            put(4);
            _tile_loadd(6, numbers + HALF, QUAD_BYTES);
            _tile_loadd(4, x + GROUP / 2, all.row());
            _tile_dpbsud(0, 4, 6);
            put(4);
            _tile_loadd(7, numbers + HALF + 4 * LANES, QUAD_BYTES);
            _tile_dpbsud(1, 4, 7);
            put(4);
            _tile_stored(0, sums[now][0], 64);
            _tile_stored(1, sums[now][1], 64);
            made = sums[now][0], unit = all.unit + r * all.groups() + g, to = out + r * BLOCK;
            num_made = n, made_column = c, now = !now;
        }
        fetches = false;
    }
    put(tiles::ROWS);
}
#endif

// A group's numbers of 4 bits as bytes; fetches the next group.
inline void unpack_four_bits(const uint32_t* from, uint8_t* to) {
    const vi lower = set1_word(0x0f0f0f0f);
    for (int k = 0; k < QUADS / 2; k++, to += 2 * QUAD_BYTES)
        for (int c = 0; c < BLOCK; c += LANES, from += LANES) {
            prefetch((const char*)from + AHEAD);
            const vi both_quads = load_words(from);
            store_words((uint32_t*)to + c, both(both_quads, lower));
            store_words((uint32_t*)to + BLOCK + c, both(right<4>(both_quads), lower));
        }
}

// The columns `first ... first + BLOCK` of all groups: out [rows][BLOCK].
inline void few_bits_block(const void* weight, const float* scale, int bits, int64_t first, const WholeRows& x,
                           int64_t rows, float* out) {
    alignas(64) static thread_local uint8_t unpacked[GROUP * BLOCK];
    const int64_t groups = x.groups(), group_bytes = GROUP * BLOCK / 8 * bits;
    const auto* w = (const uint8_t*)weight + first / BLOCK * groups * group_bytes;
    std::memset(out, 0, sizeof(float) * size_t(rows) * BLOCK);
    for (int64_t g = 0; g < groups; g++, w += group_bytes) {
        if (bits == 4) unpack_four_bits((const uint32_t*)w, unpacked);
        const Group group{bits == 4 ? unpacked : w, scale + (first / BLOCK * groups + g) * BLOCK, 1 << (bits - 1)};
#if defined(__AMX_INT8__)
        if (rows > MOST_ROWS_WITHOUT_TILES) {
            whole_tiles(group, x, g, rows, out, bits == 8);
            continue;
        }
#endif
        whole_product(group, x, g, rows, out, bits == 8);
    }
}

}  // namespace
