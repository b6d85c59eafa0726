// Vector operations of simd.h for x86-64: AVX2, AVX-512, and its bf16, VNNI and tiles (AMX).
#pragma once
#include <immintrin.h>

#if defined(__AMX_BF16__)
constexpr const char* INSTRUCTIONS = "AMX";
#elif defined(__AVX512BF16__)
constexpr const char* INSTRUCTIONS = "AVX-512 with bf16";
#elif defined(__AVX512F__)
constexpr const char* INSTRUCTIONS = "AVX-512";
#else
constexpr const char* INSTRUCTIONS = "AVX2";
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
using vf = __m512;
using vi = __m512i;
INLINE vf zero() { return _mm512_setzero_ps(); }
INLINE vf set1(float x) { return _mm512_set1_ps(x); }
INLINE vi set1_word(uint32_t x) { return _mm512_set1_epi32(int(x)); }
INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE float sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float largest(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vf round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vi as_int(vf a) { return _mm512_castps_si512(a); }
INLINE vf as_float(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi to_int(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vi add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi either(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi both(vi a, vi b) { return _mm512_and_si512(a, b); }
template <int N> INLINE vi left(vi a) { return _mm512_slli_epi32(a, N); }
template <int N> INLINE vi right(vi a) { return _mm512_srli_epi32(a, N); }
INLINE vf as_number(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
INLINE void store_words(uint32_t* p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi widen(const uint16_t* p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)); }
INLINE void narrow(uint16_t* p, vi a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a)); }
INLINE void narrow(int8_t* p, vi a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
INLINE vf load(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE void store(f16* p, vf a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vf to_half(vf a) { return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
// Returns lanes `first` to `end` of a, and minus infinity elsewhere.
INLINE vf only(vf a, int first, int end) {
    const uint32_t below_end = end >= 16 ? 0xffff : (1u << (end < 0 ? 0 : end)) - 1;
    const uint32_t below_first = first >= 16 ? 0xffff : (1u << (first < 0 ? 0 : first)) - 1;
    return _mm512_mask_mov_ps(set1(-INFINITY), __mmask16(below_end & ~below_first), a);
}
INLINE vi where_nan(vf a, vi of_nan, vi other) {
    return _mm512_mask_mov_epi32(other, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), of_nan);
}
INLINE vf times_power(vf x, vf n) { return _mm512_scalef_ps(x, n); }
INLINE vi add_byte_products(vi sums, vi a, vi b) {
#if defined(__AVX512VNNI__)
    // The intrinsic costs two register copies with gcc 12.
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#else
    const vi even = _mm512_madd_epi16(both(a, set1_word(0x00ff00ff)), _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
    return add(sums, add(even, _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8))));
#endif
}
// Converts two vectors of finite numbers to words of two bf16, halves rounded up: in a third of the time of the CPU's
// own instruction.
INLINE vi rounded_pair(vf low, vf high) {
    const vi half = set1_word(0x8000);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, right<16>(add(as_int(low), half)), add(as_int(high), half));
}
#else
constexpr int LANES = 8;
using vf = __m256;
using vi = __m256i;
INLINE vf zero() { return _mm256_setzero_ps(); }
INLINE vf set1(float x) { return _mm256_set1_ps(x); }
INLINE vi set1_word(uint32_t x) { return _mm256_set1_epi32(int(x)); }
INLINE vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE float sum(vf a) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
INLINE float largest(vf a) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
INLINE vf round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vi as_int(vf a) { return _mm256_castps_si256(a); }
INLINE vf as_float(vi a) { return _mm256_castsi256_ps(a); }
INLINE vi to_int(vf a) { return _mm256_cvtps_epi32(a); }
INLINE vi add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi either(vi a, vi b) { return _mm256_or_si256(a, b); }
INLINE vi both(vi a, vi b) { return _mm256_and_si256(a, b); }
template <int N> INLINE vi left(vi a) { return _mm256_slli_epi32(a, N); }
template <int N> INLINE vi right(vi a) { return _mm256_srli_epi32(a, N); }
INLINE vf as_number(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vi load_words(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE void store_words(uint32_t* p, vi a) { _mm256_storeu_si256((__m256i*)p, a); }
INLINE vi widen(const uint16_t* p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)); }
INLINE void narrow(uint16_t* p, vi a) {
    const __m128i low = _mm256_castsi256_si128(a), high = _mm256_extracti128_si256(a, 1);
    _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(low, high));
}
INLINE void narrow(int8_t* p, vi a) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
INLINE vf load(const float* p) { return _mm256_loadu_ps(p); }
INLINE void store(float* p, vf a) { _mm256_storeu_ps(p, a); }
INLINE vf load(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
INLINE void store(f16* p, vf a) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vf to_half(vf a) { return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vf only(vf a, int first, int end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(set1_word(uint32_t(first)), lane),
                                        _mm256_cmpgt_epi32(lane, set1_word(uint32_t(end - 1))));
    return _mm256_blendv_ps(a, set1(-INFINITY), _mm256_castsi256_ps(out));
}
INLINE vi where_nan(vf a, vi of_nan, vi other) {
    return _mm256_blendv_epi8(other, of_nan, as_int(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
INLINE vi add_byte_products(vi sums, vi a, vi b) {
    const vi even = _mm256_madd_epi16(both(a, set1_word(0x00ff00ff)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    return add(sums, add(even, _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8))));
}
#endif
INLINE int to_int(float a) { return _mm_cvtss_si32(_mm_set_ss(a)); }
INLINE void spin() { _mm_pause(); }

// Offset subtracted from bytes of weights before they are multiplied: none here.
constexpr int BYTES_LESS = 0;
INLINE vi fewer(vi bytes) { return bytes; }

#if defined(__AVX512F__)
#define HAS_POWERS 1
#define HAS_ROUNDED_PAIR 1
#endif
#if defined(__AVX512BF16__)
#define HAS_BF16 1
// Denormal numbers become 0.
INLINE vi rounded(vf a) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a)); }
INLINE void store(bf16* p, vf a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a)); }
INLINE vf add_pair_products(vf sums, vi a, vi b) { return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b); }
// Stores two vectors past the caches, at the beginning of a cache line.
INLINE void stream(bf16* p, vf low, vf high) { _mm512_stream_si512((__m512i*)p, (__m512i)_mm512_cvtne2ps_pbh(high, low)); }
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)
// 2^x to 1 in 200,000, for weights that become bf16; 0 for minus infinity.
INLINE vf roughly_exp2(vf x) {
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // in [0, 1)
    vf p = fma(r, set1(0.0135341632f), set1(0.0520114698f));
    p = fma(p, r, set1(0.241442751f));
    p = fma(p, r, set1(0.693003836f));
    return _mm512_scalef_ps(fma(p, r, set1(1.00000259f)), x);  // scaled by the whole number below x
}
// 2^x to 1 in 10,000, a twentieth of the effect of rounding to a bf16; 0 for minus infinity.
INLINE vf exp2_of_8_bits(vf x) {
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const vf p = fma(fma(r, set1(0.0780238733f), set1(0.226066932f)), r, set1(0.695834279f));
    return _mm512_scalef_ps(fma(p, r, set1(0.999925077f)), x);
}
// 1 / x to 1 in 16,000.
INLINE vf roughly_inverse(vf x) { return _mm512_rcp14_ps(x); }
#endif
