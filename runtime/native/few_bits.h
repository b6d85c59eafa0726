// Weights as whole numbers of 8 or 4 bits, with a scale for every GROUP inputs of an output, and their products.
//
// A product is one of whole numbers: a row's GROUP inputs are made numbers of 16 bits in units of their own, which is
// finer than the bf16 that they come in wherever it counts. So a group's sum is exact, whatever the order it is made in
// and whoever makes it, and a row's result is the same beside any other rows and on any CPU.
//
// Columns lie side by side in blocks of quads of inputs, [O / BLOCK][I / 4][BLOCK][4]: bytes, or half as many of 4 bits
// plus 8, where a byte holds an input of one quad and of the next.
#pragma once
#include <algorithm>

#include "simd.h"
#include "tiles.h"

namespace {

constexpr int64_t MOST_ROWS_WITHOUT_TILES = 4;
constexpr int BLOCK = 64, GROUP = 128, QUADS = GROUP / 4, QUAD_BYTES = 4 * BLOCK;
constexpr int AHEAD = 2 * GROUP * BLOCK;  // bytes between what is multiplied and what is fetched

// Some rows of inputs as whole numbers: 16 bits each, or where tiles multiply them a row's upper bytes, signed, and
// behind them its lower ones.
struct WholeRows {
    char* at = nullptr;
    float* unit = nullptr;  // [rows][I / GROUP]
    int64_t num_in = 0;
    bool in_bytes = false;

    // Rows lie a cache line more apart than they are wide: that is a power of two often.
    int64_t row() const { return 2 * num_in + 64; }
    int64_t groups() const { return num_in / GROUP; }
    WholeRows from(int64_t r) const { return {at + r * row(), unit + r * groups(), num_in, in_bytes}; }
    void take(int64_t r, const bf16* x) const;
};

// A group in units of a 32,767th of its largest; what is no number makes its unit none.
inline void WholeRows::take(int64_t r, const bf16* x) const {
    constexpr float MOST = 32767, LEAST_NUMBER = 1e-30f;
    char* to = at + r * row();
    for (int64_t g = 0; g < groups(); g++, x += GROUP) {
        vf most = zero(), none = zero();
        for (int i = 0; i < GROUP; i += LANES) {
            const vf a = load(x + i);
            most = max(most, max(a, zero() - a));
            none = fma(a, zero(), none);
        }
        const float largest_of_all = largest(most);
        unit[r * groups() + g] = largest_of_all / MOST + sum(none);
        const vf a_unit = set1(largest_of_all > LEAST_NUMBER ? MOST / largest_of_all : 0);
        for (int i = 0; i < GROUP; i += LANES) {
            const vi number = to_int(load(x + i) * a_unit);
            const int64_t at = g * GROUP + i;
#if defined(__AMX_INT8__)
            if (in_bytes) {
                _mm_storeu_si128((__m128i*)(to + at), _mm512_cvtepi32_epi8(right_signed<8>(number)));
                _mm_storeu_si128((__m128i*)(to + num_in + at), _mm512_cvtepi32_epi8(number));
                continue;
            }
#endif
            narrow((uint16_t*)to + at, both(number, set1_word(0xffff)));
        }
    }
}

// Bytes as numbers of 16 bits.
INLINE vi widen_bytes(const int8_t* p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
#else
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
#endif
}

// Four numbers of 16 bits, again and again.
INLINE vi quad(const int16_t* p) {
    int64_t all;
    std::memcpy(&all, p, sizeof all);
#if defined(__AVX512F__)
    return _mm512_set1_epi64(all);
#else
    return _mm256_set1_epi64x(all);
#endif
}

// Adds products of numbers of 16 bits, two neighbours to a lane.
INLINE vi add_products(vi sums, vi a, vi b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sums, a, b);
#elif defined(__AVX512F__)
    return add(sums, _mm512_madd_epi16(a, b));
#else
    return add(sums, _mm256_madd_epi16(a, b));
#endif
}

// Sums of neighbouring lanes: those of a, then those of b.
INLINE vi added_neighbours(vi a, vi b) {
#if defined(__AVX512F__)
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return add(_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, add(even, set1_word(1)), b));
#else
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8);
#endif
}

// One group of a block, and what becomes of it: out [rows][BLOCK] is what it comes to, or more by it. Row and column
// have a unit each.
struct Group {
    const int8_t* numbers;
    const float* scale;
    bool adds;

    INLINE void put(vi sums, vf unit, int column, float* out) const {
        const vf times = unit * load(scale + column);
        store(out + column, fma(as_number(sums), times, adds ? load(out + column) : zero()));
    }
};

// Some rows and 2 VECTORS vectors of columns; fetches the block's next group of bytes if this is the first to read them.
template <int ROWS, int VECTORS>
INLINE void whole_tile(const Group& group, int column, const WholeRows& x, int64_t g, float* out, bool fetches) {
    constexpr int HALF = LANES / 2;  // columns of a vector
    const auto* numbers = group.numbers + 4 * column;
    vi sums[ROWS][VECTORS];
    for (auto& row : sums)
        for (vi& s : row) s = set1_word(0);
    for (int k = 0; k < QUADS; k++, numbers += QUAD_BYTES) {
        if (fetches)
            for (int i = 0; i < 4 * HALF * VECTORS; i += 64)
                _mm_prefetch((const char*)(numbers + AHEAD + i), _MM_HINT_T1);
        vi inputs[ROWS];
        for (int r = 0; r < ROWS; r++) inputs[r] = quad((const int16_t*)(x.at + r * x.row()) + g * GROUP + 4 * k);
        for (int v = 0; v < VECTORS; v++) {
            const vi columns = widen_bytes(numbers + 4 * HALF * v);
            for (int r = 0; r < ROWS; r++) sums[r][v] = add_products(sums[r][v], columns, inputs[r]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v += 2)
            group.put(added_neighbours(sums[r][v], sums[r][v + 1]), set1(x.unit[r * x.groups() + g]), column + HALF * v,
                      out + r * BLOCK);
}

inline void whole_product(const Group& group, const WholeRows& all, int64_t g, int64_t rows, float* out, bool fetches) {
    constexpr int VECTORS = 4;
    for (int64_t r = 0, n; r < rows; r += n, fetches = false) {
        const WholeRows x = all.from(r);
        n = std::min<int64_t>(rows - r, LANES == 16 ? 4 : 2);
        for (int c = 0; c < BLOCK; c += VECTORS * LANES / 2) {
            float* to = out + r * BLOCK;
            if (n == 1) whole_tile<1, VECTORS>(group, c, x, g, to, fetches);
            else if (n == 2) whole_tile<2, VECTORS>(group, c, x, g, to, fetches);
#if defined(__AVX512F__)
            else if (n == 3) whole_tile<3, VECTORS>(group, c, x, g, to, fetches);
            else whole_tile<4, VECTORS>(group, c, x, g, to, fetches);
#endif
        }
    }
}

#if defined(__AMX_INT8__)
// The same by tiles, of 16 rows and twice 16 columns. What they come to is put away while the next are multiplied.
inline void whole_tiles(const Group& group, const WholeRows& all, int64_t g, int64_t rows, float* out, bool fetches) {
    constexpr int SUMS = tiles::ROWS * LANES, HALF = QUADS / 2 * QUAD_BYTES;
    alignas(64) static thread_local int32_t sums[2][4][SUMS];  // upper and lower of the left columns, and of the right
    const int32_t* made = nullptr;
    const float* unit = nullptr;
    float* to = nullptr;
    int num_made = 0, made_column = 0, now = 0;
    const auto put = [&](int most) {
        for (; most > 0 && num_made > 0; most--, num_made--, made += LANES, unit += all.groups(), to += BLOCK) {
            const auto part = [&](int tile) { return load_words((const uint32_t*)made + tile * SUMS); };
            const vf a_unit = set1(*unit);
            group.put(add(left<8>(part(0)), part(1)), a_unit, made_column, to);
            group.put(add(left<8>(part(2)), part(3)), a_unit, made_column + LANES, to);
        }
    };
    for (int64_t r = 0; r < rows; r += tiles::ROWS) {
        const int n = int(std::min<int64_t>(tiles::ROWS, rows - r));
        const char *upper = all.at + r * all.row() + g * GROUP, *lower = upper + all.num_in;
        tiles::take_shape(n, n);
        for (int c = 0; c < BLOCK; c += 2 * LANES) {
            const auto* numbers = group.numbers + 4 * c;
            if (fetches)
                for (int k = 0; k < QUADS; k++) {
                    _mm_prefetch((const char*)(numbers + AHEAD + k * QUAD_BYTES), _MM_HINT_T1);
                    _mm_prefetch((const char*)(numbers + AHEAD + k * QUAD_BYTES + 64), _MM_HINT_T1);
                }
            _tile_loadd(6, numbers, QUAD_BYTES);
            _tile_loadd(4, upper, all.row());
            _tile_zero(0);
            _tile_dpbssd(0, 4, 6);
            put(2);
            _tile_loadd(7, numbers + 4 * LANES, QUAD_BYTES);
            _tile_zero(2);
            _tile_dpbssd(2, 4, 7);
            put(2);
            _tile_loadd(5, lower, all.row());
            _tile_zero(1);
            _tile_dpbusd(1, 5, 6);
            put(2);
            _tile_zero(3);
            _tile_dpbusd(3, 5, 7);
            put(2);
            _tile_loadd(6, numbers + HALF, QUAD_BYTES);
            _tile_loadd(4, upper + GROUP / 2, all.row());
            _tile_dpbssd(0, 4, 6);
            put(2);
            _tile_loadd(7, numbers + HALF + 4 * LANES, QUAD_BYTES);
            _tile_dpbssd(2, 4, 7);
            put(2);
            _tile_loadd(5, lower + GROUP / 2, all.row());
            _tile_dpbusd(1, 5, 6);
            put(2);
            _tile_dpbusd(3, 5, 7);
            put(2);
            _tile_stored(0, sums[now][0], 64);
            _tile_stored(1, sums[now][1], 64);
            _tile_stored(2, sums[now][2], 64);
            _tile_stored(3, sums[now][3], 64);
            made = sums[now][0], unit = all.unit + r * all.groups() + g, to = out + r * BLOCK;
            num_made = n, made_column = c, now = !now;
        }
        fetches = false;
    }
    put(tiles::ROWS);
}
#endif

// A group's numbers of 4 bits as bytes; fetches the next group.
inline void unpack_four_bits(const uint32_t* from, int8_t* to) {
    const auto less_8 = [](vi a) {
#if defined(__AVX512F__)
        return _mm512_sub_epi8(a, _mm512_set1_epi8(8));
#else
        return _mm256_sub_epi8(a, _mm256_set1_epi8(8));
#endif
    };
    const vi lower = set1_word(0x0f0f0f0f);
    for (int k = 0; k < QUADS / 2; k++, to += 2 * QUAD_BYTES)
        for (int c = 0; c < BLOCK; c += LANES, from += LANES) {
            _mm_prefetch((const char*)from + AHEAD, _MM_HINT_T1);
            const vi both_quads = load_words(from);
            store_words((uint32_t*)to + c, less_8(both(both_quads, lower)));
            store_words((uint32_t*)to + BLOCK + c, less_8(both(right<4>(both_quads), lower)));
        }
}

// The columns `first ... first + BLOCK` of all groups: out [rows][BLOCK].
inline void few_bits_block(const void* weight, const float* scale, int bits, int64_t first, const WholeRows& x,
                           int64_t rows, float* out) {
    alignas(64) static thread_local int8_t unpacked[GROUP * BLOCK];
    const int64_t groups = x.groups(), group_bytes = GROUP * BLOCK / 8 * bits;
    const auto* w = (const int8_t*)weight + first / BLOCK * groups * group_bytes;
    for (int64_t g = 0; g < groups; g++, w += group_bytes) {
        if (bits == 4) unpack_four_bits((const uint32_t*)w, unpacked);
        const Group group{bits == 4 ? unpacked : w, scale + (first / BLOCK * groups + g) * BLOCK, g > 0};
#if defined(__AMX_INT8__)
        if (x.in_bytes) {
            whole_tiles(group, x, g, rows, out, bits == 8);
            continue;
        }
#endif
        whole_product(group, x, g, rows, out, bits == 8);
    }
}

}  // namespace
