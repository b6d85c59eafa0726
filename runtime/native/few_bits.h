// Weights as whole numbers of 8 or 4 bits, with a scale for every GROUP inputs of an output. Columns lie side by side
// in blocks: pairs of bytes, [O / BLOCK][I / 2][BLOCK][2], or words of 8 neighbouring inputs, [O / BLOCK][I / 8][BLOCK].
//
// In a word of 4 bits the lower half holds the even inputs, the upper half the odd ones, so that one lookup in a table
// makes a pair.
#pragma once
#include "simd.h"

namespace {

constexpr int BLOCK = 64, GROUP = 128;

// Two whole numbers as a pair of bf16, which hold up to 8 bits exactly.
INLINE vi paired(vi low, vi high) {
    return either(right<16>(as_int(as_number(low))), both(as_int(as_number(high)), set1_word(0xffff0000)));
}

template <int AT> INLINE vi byte_at(vi word) { return right_signed<24>(left<24 - 8 * AT>(word)); }
template <int AT> INLINE vi four_bits_at(vi word) { return right_signed<28>(left<28 - 4 * AT>(word)); }

// LANES pairs of bytes.
INLINE vi pairs_of_bytes(const uint16_t* p) {
#if defined(__AVX512BF16__)
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(p + 8))));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
    const vi word = widen(p);
    return paired(byte_at<0>(word), byte_at<1>(word));
#endif
}

#if defined(__AVX512F__)
template <int AT> INLINE vi pair_of_four_bits(vi word) {
    // bf16 of 0 ... 7 and -8 ... -1, twice, as the index's fifth bit is its neighbour's.
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, short(0xc100), short(0xc0e0), short(0xc0c0),
        short(0xc0a0), short(0xc080), short(0xc040), short(0xc000), short(0xbf80)));
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(word, 4 * AT), table);
}
#else
template <int AT> INLINE vi pair_of_four_bits(vi word) { return paired(four_bits_at<AT>(word), four_bits_at<AT + 4>(word)); }
#endif

// One group of a block: [GROUP / 2][BLOCK] pairs of bf16. Fetches the next group.
INLINE void unpack_bytes(const uint16_t* from, uint32_t* to) {
    for (long i = 0; i < GROUP / 2 * BLOCK; i += 2 * LANES) {
        _mm_prefetch((const char*)(from + GROUP / 2 * BLOCK + i), _MM_HINT_T0);
        store_words(to + i, pairs_of_bytes(from + i));
        store_words(to + i + LANES, pairs_of_bytes(from + i + LANES));
    }
}

INLINE void unpack_four_bits(const uint32_t* from, uint32_t* to) {
    for (long i = 0; i < GROUP / 8 * BLOCK; i += LANES) {
        uint32_t* pair = to + i / BLOCK * 4 * BLOCK + i % BLOCK;
        _mm_prefetch((const char*)(from + GROUP / 8 * BLOCK + i), _MM_HINT_T0);
        const vi word = load_words(from + i);
        store_words(pair, pair_of_four_bits<0>(word));
        store_words(pair + BLOCK, pair_of_four_bits<1>(word));
        store_words(pair + 2 * BLOCK, pair_of_four_bits<2>(word));
        store_words(pair + 3 * BLOCK, pair_of_four_bits<3>(word));
    }
}

}  // namespace
