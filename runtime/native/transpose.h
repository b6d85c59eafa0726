// Turns LANES rows of LANES words around, in registers.
#pragma once
#include "simd.h"

#if defined(__AVX512F__)
INLINE void transpose(const uint32_t* const rows[LANES], long at, uint32_t* out, long out_row) {
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
        store_words(out + i * out_row, _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88));
        store_words(out + (i + 8) * out_row, _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd));
    }
}
#else
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
