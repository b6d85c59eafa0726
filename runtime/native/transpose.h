// Reordering of words in registers: transposes of LANES rows of LANES words, and interleaved halves.
#pragma once
#include "simd.h"

#if defined(__AVX512F__)
// Interleaves the halves of the lower or upper LANES words of `a` and `b`.
template <bool UPPER> INLINE vi interleaved(vi a, vi b) {
    const __m512i step = _mm512_set1_epi32(0x00010001), from_both = _mm512_set1_epi32(UPPER ? 0x00300010 : 0x00200000);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutex2var_epi16(a, _mm512_add_epi32(_mm512_mullo_epi32(lane, step), from_both), b);
}

// Transposes words of rows from `at` on: out[i] has those of column at + i.
INLINE void transposed(const uint32_t* const rows[LANES], long at, vi out[LANES]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = load_words(rows[i] + at);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 16; half += 8) {
            b[half + i] = _mm512_shuffle_i32x4(a[half + i], a[half + 4 + i], 0x88);
            b[half + 4 + i] = _mm512_shuffle_i32x4(a[half + i], a[half + 4 + i], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        out[i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88);
        out[i + 8] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd);
    }
}
#elif defined(__aarch64__)
// Interleaves the halves of the lower or upper LANES words of `a` and `b`.
template <bool UPPER> INLINE vi interleaved(vi a, vi b) {
    const uint16x8_t x = vreinterpretq_u16_s32(a), y = vreinterpretq_u16_s32(b);
    return vreinterpretq_s32_u16(UPPER ? vzip2q_u16(x, y) : vzip1q_u16(x, y));
}

// Transposes words of rows from `at` on: out[i] has those of column at + i.
INLINE void transposed(const uint32_t* const rows[LANES], long at, vi out[LANES]) {
    const vi a = load_words(rows[0] + at), b = load_words(rows[1] + at);
    const vi c = load_words(rows[2] + at), d = load_words(rows[3] + at);
    const int64x2_t even = vreinterpretq_s64_s32(vtrn1q_s32(a, b)), odd = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
    const int64x2_t lower = vreinterpretq_s64_s32(vtrn1q_s32(c, d)), odd_lower = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
    out[0] = vreinterpretq_s32_s64(vtrn1q_s64(even, lower));
    out[1] = vreinterpretq_s32_s64(vtrn1q_s64(odd, odd_lower));
    out[2] = vreinterpretq_s32_s64(vtrn2q_s64(even, lower));
    out[3] = vreinterpretq_s32_s64(vtrn2q_s64(odd, odd_lower));
}
#else
INLINE void interleave(const uint16_t* a, const uint16_t* b, uint32_t* out) {
    for (int i = 0; i < 16; i += 8) store_words(out + i, either(widen(a + i), left<16>(widen(b + i))));
}

INLINE void transpose(const uint32_t* const rows[LANES], long at, uint32_t* out, long out_row) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps((const float*)rows[i] + at);
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float*)out + i * out_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps((float*)out + (i + 4) * out_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
// Interleaves the halves of 2 LANES words of `a` and `b`.
INLINE void interleave(const uint16_t* a, const uint16_t* b, uint32_t* out) {
    const vi low = load_words((const uint32_t*)a), high = load_words((const uint32_t*)b);
    store_words(out, interleaved<false>(low, high));
    store_words(out + LANES, interleaved<true>(low, high));
}

INLINE void transpose(const uint32_t* const rows[LANES], long at, uint32_t* out, long out_row) {
    vi columns[LANES];
    transposed(rows, at, columns);
    for (int i = 0; i < LANES; i++) store_words(out + i * out_row, columns[i]);
}
#endif
