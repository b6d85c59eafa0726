// Weights as integers of 8 or 4 bits, with a scale for every GROUP inputs of an output, and their products.
//
// Products are computed in integers: GROUP inputs of a row become integers of 8 bits in a unit of their own. The sum of
// a group is exact, in whatever order and by whichever thread it is computed, so that a row's result is the same beside
// any other rows and on any CPU.
//
// CPUs multiply unsigned bytes by signed ones. Weights are stored unsigned, increased by OFFSET (128 for 8 bits, 8 for
// 4), and a group's sum begins at -OFFSET times the sum of its inputs: with the weights -3 and 5 and the inputs 7 and
// -2, (125 x 7 + 133 x -2) - 128 x (7 - 2) = -31. The largest sum, 255 x 127 x GROUP, is far from 2^31 and below 2^24,
// up to which a float is exact.
//
// Columns are stored in blocks of quads of inputs, [O / BLOCK][I / 4][BLOCK][4]: bytes, or half as many if a byte
// contains an input of one quad and one of the next.
//
// Weights of a GGUF file are such integers, too, with a scale for every 32 or 16 inputs. Some types have a least weight
// beside the scale, to which an unsigned integer times the scale is added. Rows then have units of FINE inputs.
#pragma once
#include <algorithm>

#include "product.h"

namespace {

constexpr int64_t MOST_ROWS_WITHOUT_TILES = 4;
// Numbers of rows and vectors whose sums fill the registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MOST_WHOLE_ROWS = 6, MOST_WHOLE_VECTORS = 4;
#else
constexpr int MOST_WHOLE_ROWS = 4, MOST_WHOLE_VECTORS = 2;
#endif
constexpr int BLOCK = 64, GROUP = 128, QUAD_BYTES = 4 * BLOCK;
constexpr int FINE = 32, PART = 16;  // inputs per unit and per total of rows, for groups smaller than GROUP
constexpr int AHEAD = 2 * GROUP * BLOCK;  // distance in bytes between the data being multiplied and the prefetched data

// Weights of a linear layer: integer times scale, plus the least weight of the group if there is one.
struct FewBits {
    const void* numbers;
    const void* scale;  // [O / BLOCK][I / group][BLOCK] of float, or of f16
    const void* least;  // as `scale`, null: none
    int bits, group;
    bool has_halves;
};

// Unit of a row's integers, and the sum of GROUP or PART of them.
struct Unit {
    float size;
    int32_t total;
};

// Some rows of inputs as integers of 8 bits.
struct WholeRows {
    int8_t* at = nullptr;
    Unit* unit = nullptr;  // [rows][I / GROUP], or [rows][I / PART]
    int64_t num_in = 0;
    bool is_fine = false;

    // Rows are padded by a cache line, because their width is often a power of two.
    int64_t row() const { return num_in + 64; }
    int64_t units() const { return num_in / (is_fine ? PART : GROUP); }
    WholeRows from(int64_t r) const { return {at + r * row(), unit + r * units(), num_in, is_fine}; }
    template <class T> void take(int64_t r, const T* x) const {
        is_fine ? take_groups<FINE, PART>(r, x) : take_groups<GROUP, GROUP>(r, x);
    }

  private:
    template <int INPUTS, int SUMMED, class T> void take_groups(int64_t r, const T* x) const;
};

// Quantises INPUTS in units of a 127th of their largest number; NaN or infinity makes the unit NaN.
template <int INPUTS, int SUMMED, class T> void WholeRows::take_groups(int64_t r, const T* x) const {
    constexpr float MOST = 127, LEAST_NUMBER = 1e-30f;
    int8_t* to = at + r * row();
    Unit* made = unit + r * units();
    for (const T* end = x + num_in; x < end; x += INPUTS) {
        vf most = zero(), none = zero();
        for (int i = 0; i < INPUTS; i += LANES) {
            const vf a = load(x + i);
            most = max(most, max(a, zero() - a));
            none = fma(a, zero(), none);
        }
        const float largest_of_all = largest(most);
        const vf a_unit = set1(largest_of_all > LEAST_NUMBER ? MOST / largest_of_all : 0);
        const float size = largest_of_all / MOST + sum(none);
        for (int part = 0; part < INPUTS; part += SUMMED, to += SUMMED) {
            vf total = zero();
            for (int i = 0; i < SUMMED; i += LANES) {
                const vi number = to_int(load(x + part + i) * a_unit);
                narrow(to + i, number);
                total = total + as_number(number);
            }
            *made++ = {size, to_int(sum(total))};
        }
    }
}

// Finishes one group of a block: adds its sums to out [rows][BLOCK], multiplied by the units of row and column.
template <int INPUTS> struct Group {
    static constexpr int QUADS = INPUTS / 4, UNITS = INPUTS == FINE ? FINE / PART : 1;
    const uint8_t* numbers;
    const void* scale;
    const void* least;
    int offset;
    bool has_halves;

    static INLINE const Unit& unit(const WholeRows& x, int64_t r, int64_t g) { return x.unit[r * x.units() + g * UNITS]; }
    // Unsigned, because the total of a group with a NaN may be any number.
    static INLINE uint32_t total(const Unit& unit) {
        return uint32_t(unit.total) + (UNITS > 1 ? uint32_t((&unit)[1].total) : 0);
    }
    INLINE vi begin(const Unit& unit) const { return set1_word(uint32_t(BYTES_LESS - offset) * total(unit)); }
    INLINE vf of(const void* columns, int column) const {
        if (INPUTS != GROUP && has_halves) return load((const f16*)columns + column);
        return load((const float*)columns + column);
    }
    INLINE void put(vi sums, const Unit& unit, int column, float* out) const {
        const vf size = set1(unit.size);
        vf to = fma(as_number(sums), size * of(scale, column), load(out + column));
        if (INPUTS != GROUP && least) to = fma(size * set1(float(int32_t(total(unit)))), of(least, column), to);
        store(out + column, to);
    }
};

// Multiplies some rows by VECTORS vectors of columns; prefetches the block's next group for the first reader.
template <int ROWS, int VECTORS, int INPUTS>
INLINE void whole_tile(const Group<INPUTS>& group, int column, const WholeRows& x, int64_t g, float* out, bool fetches) {
    const auto* numbers = group.numbers + 4 * column;
    const int ahead = fetches ? AHEAD : 0;  // a prefetch of data that is in the cache costs nothing
    vi sums[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < VECTORS; v++) sums[r][v] = group.begin(group.unit(x, r, g));
    for (int k = 0; k < group.QUADS; k++, numbers += QUAD_BYTES) {
        for (int i = 0; i < 4 * LANES * VECTORS; i += 64)
            prefetch(numbers + ahead + i);
        vi columns[VECTORS];
        UNROLLED for (int v = 0; v < VECTORS; v++) columns[v] = fewer(load_words((const uint32_t*)numbers + LANES * v));
        UNROLLED for (int r = 0; r < ROWS; r++) {
            uint32_t inputs;
            std::memcpy(&inputs, x.at + r * x.row() + g * INPUTS + 4 * k, sizeof inputs);
            UNROLLED for (int v = 0; v < VECTORS; v++) sums[r][v] = add_byte_products(sums[r][v], columns[v], set1_word(inputs));
        }
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int v = 0; v < VECTORS; v++)
            group.put(sums[r][v], group.unit(x, r, g), column + LANES * v, out + r * BLOCK);
}

template <int INPUTS>
void whole_product(const Group<INPUTS>& group, const WholeRows& all, int64_t g, int64_t rows, float* out, bool fetches) {
    int64_t passes = (rows + MOST_WHOLE_ROWS - 1) / MOST_WHOLE_ROWS;
    for (int64_t r = 0, n; r < rows; r += n, passes--, fetches = false) {
        const WholeRows x = all.from(r);
        n = (rows - r + passes - 1) / passes;  // passes of equal size: with few rows, sums have to wait
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
// The same by tiles, of 16 rows and twice 16 columns. Sums are stored while the next ones are multiplied.
inline void whole_tiles(const Group<GROUP>& group, const WholeRows& all, int64_t g, int64_t rows, float* out, bool fetches) {
    constexpr int SUMS = tiles::ROWS * LANES, QUADS = GROUP / 4, HALF = QUADS / 2 * QUAD_BYTES;
    alignas(64) static thread_local uint32_t sums[2][2][SUMS];  // of the left and of the right columns
    const uint32_t* made = nullptr;
    const Unit* unit = nullptr;
    float* to = nullptr;
    int num_made = 0, made_column = 0, now = 0;
    const auto put = [&](int most) {
        for (; most > 0 && num_made > 0; most--, num_made--, made += LANES, unit += all.units(), to += BLOCK)
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
            made = sums[now][0], unit = &group.unit(all, r, g), to = out + r * BLOCK;
            num_made = n, made_column = c, now = !now;
        }
        fetches = false;
    }
    put(tiles::ROWS);
}
#endif

// Expands a group's integers of 4 bits to bytes; prefetches the next group.
template <int INPUTS> void unpack_four_bits(const uint32_t* from, uint8_t* to) {
    const vi lower = set1_word(0x0f0f0f0f);
    for (int k = 0; k < INPUTS / 8; k++, to += 2 * QUAD_BYTES)
        for (int c = 0; c < BLOCK; c += LANES, from += LANES) {
            prefetch((const char*)from + AHEAD);
            const vi both_quads = load_words(from);
            store_words((uint32_t*)to + c, both(both_quads, lower));
            store_words((uint32_t*)to + BLOCK + c, both(right<4>(both_quads), lower));
        }
}

template <int INPUTS>
void few_bits_groups(const FewBits& l, int64_t first, const WholeRows& x, int64_t rows, float* out) {
    alignas(64) static thread_local uint8_t unpacked[INPUTS * BLOCK];
    const int64_t groups = x.num_in / INPUTS, group_bytes = INPUTS * BLOCK / 8 * l.bits;
    const int64_t column_bytes = BLOCK * (l.has_halves ? sizeof(f16) : sizeof(float));
    int64_t at = first / BLOCK * groups;
    const auto* w = (const uint8_t*)l.numbers + at * group_bytes;
    std::memset(out, 0, sizeof(float) * size_t(rows) * BLOCK);
    for (int64_t g = 0; g < groups; g++, at++, w += group_bytes) {
        if (l.bits == 4) unpack_four_bits<INPUTS>((const uint32_t*)w, unpacked);
        const Group<INPUTS> group{l.bits == 4 ? unpacked : w, (const char*)l.scale + at * column_bytes,
                                  l.least ? (const char*)l.least + at * column_bytes : nullptr,
                                  l.least ? 0 : 1 << (l.bits - 1), l.has_halves};
#if defined(__AMX_INT8__)
        if constexpr (INPUTS == GROUP)
            if (rows > MOST_ROWS_WITHOUT_TILES) {
                whole_tiles(group, x, g, rows, out, l.bits == 8);
                continue;
            }
#endif
        whole_product(group, x, g, rows, out, l.bits == 8);
    }
}

// Computes the columns `first ... first + BLOCK` over all groups: out [rows][BLOCK].
inline void few_bits_block(const FewBits& l, int64_t first, const WholeRows& x, int64_t rows, float* out) {
    if (l.group == GROUP) few_bits_groups<GROUP>(l, first, x, rows, out);
    else if (l.group == FINE) few_bits_groups<FINE>(l, first, x, rows, out);
    else few_bits_groups<PART>(l, first, x, rows, out);
}

}  // namespace
