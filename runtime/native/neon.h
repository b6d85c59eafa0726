// Vector operations of simd.h for aarch64: NEON, and its products of bytes (dotprod, i8mm) and of bf16 if the target
// has them.
//
// Memory is read by types that may alias and are not aligned, as x86's operations do: the same words are floats to one
// function and bits to the next.
#pragma once
#include <arm_neon.h>

#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr const char* INSTRUCTIONS = "NEON with bf16 and i8mm";
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr const char* INSTRUCTIONS = "NEON with bf16";
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr const char* INSTRUCTIONS = "NEON with dotprod";
#else
constexpr const char* INSTRUCTIONS = "NEON";
#endif

constexpr int LANES = 4;
using vf = float32x4_t;
using vi = int32x4_t;
using floats_anywhere = float32x4_t __attribute__((may_alias, aligned(1)));
using words_anywhere = int32x4_t __attribute__((may_alias, aligned(1)));
using halves_anywhere = uint16x4_t __attribute__((may_alias, aligned(1)));

INLINE vf zero() { return vdupq_n_f32(0); }
INLINE vf set1(float x) { return vdupq_n_f32(x); }
INLINE vi set1_word(uint32_t x) { return vdupq_n_s32(int32_t(x)); }
INLINE vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
// For a NaN and a number both return the second, as on x86; NEON's own operations return the NaN.
INLINE vf max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE vf min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE float sum(vf a) { return vaddvq_f32(a); }
INLINE float largest(vf a) { return vmaxvq_f32(a); }
INLINE vf round(vf a) { return vrndnq_f32(a); }
INLINE vi as_int(vf a) { return vreinterpretq_s32_f32(a); }
INLINE vf as_float(vi a) { return vreinterpretq_f32_s32(a); }
INLINE vi to_int(vf a) { return vcvtnq_s32_f32(a); }
INLINE int to_int(float a) { return vcvtns_s32_f32(a); }
INLINE vi add(vi a, vi b) { return vaddq_s32(a, b); }
INLINE vi either(vi a, vi b) { return vorrq_s32(a, b); }
INLINE vi both(vi a, vi b) { return vandq_s32(a, b); }
template <int N> INLINE vi left(vi a) { return vshlq_n_s32(a, N); }
template <int N> INLINE vi right(vi a) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N)); }
INLINE vf as_number(vi a) { return vcvtq_f32_s32(a); }
INLINE vi load_words(const uint32_t* p) { return *(const words_anywhere*)p; }
INLINE void store_words(uint32_t* p, vi a) { *(words_anywhere*)p = a; }
INLINE vi widen(const uint16_t* p) { return vreinterpretq_s32_u32(vmovl_u16(*(const halves_anywhere*)p)); }
INLINE void narrow(uint16_t* p, vi a) { *(halves_anywhere*)p = vmovn_u32(vreinterpretq_u32_s32(a)); }
INLINE void narrow(int8_t* p, vi a) {
    const int16x4_t words = vqmovn_s32(a);
    const uint32_t bytes = vget_lane_u32(vreinterpret_u32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
    std::memcpy(p, &bytes, sizeof bytes);
}
INLINE vf load(const float* p) { return *(const floats_anywhere*)p; }
INLINE void store(float* p, vf a) { *(floats_anywhere*)p = a; }
INLINE vf load(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(*(const halves_anywhere*)p)); }
INLINE void store(f16* p, vf a) { *(halves_anywhere*)p = vreinterpret_u16_f16(vcvt_f16_f32(a)); }
INLINE vf to_half(vf a) { return vcvt_f32_f16(vcvt_f16_f32(a)); }
// Returns lanes `first` to `end` of a, and minus infinity elsewhere.
INLINE vf only(vf a, int first, int end) {
    const vi lane = {0, 1, 2, 3};
    const uint32x4_t in = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(end)));
    return vbslq_f32(in, a, set1(-INFINITY));
}
INLINE vi where_nan(vf a, vi of_nan, vi other) { return vbslq_s32(vceqq_f32(a, a), other, of_nan); }
// `yield` returns at once on most cores; an instruction barrier waits about as long as x86's pause.
INLINE void spin() { __asm__ volatile("isb" ::: "memory"); }

// Adds products of unsigned bytes `a` and signed bytes `b`, four neighbours to a lane. If the CPU only has products of
// signed bytes, 128 is subtracted from `a` first, and the initial sums compensate for it.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int BYTES_LESS = 0;
INLINE vi fewer(vi bytes) { return bytes; }
INLINE vi add_byte_products(vi sums, vi a, vi b) { return vusdotq_s32(sums, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b)); }
#else
constexpr int BYTES_LESS = 128;
INLINE vi fewer(vi bytes) { return veorq_s32(bytes, set1_word(0x80808080)); }
INLINE vi add_byte_products(vi sums, vi a, vi b) {
    const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sums, x, y);
#else
    // Two products of 128 x 127 are less than 2^15.
    return vpadalq_s16(sums, vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y)));
#endif
}
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAS_BF16 1
INLINE vi rounded(vf a) { return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(a)))); }
INLINE void store(bf16* p, vf a) { *(halves_anywhere*)p = vreinterpret_u16_bf16(vcvt_bf16_f32(a)); }
INLINE vf add_pair_products(vf sums, vi a, vi b) {
    return vbfdotq_f32(sums, vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b));
}
#endif
