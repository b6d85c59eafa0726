// Vectors of 32-bit lanes for the instruction set that this file is compiled for, and the three number formats of
// models. Everything is computed in float; products of bf16 are computed two at a time if the CPU can.
//
// Operations of the CPU are in x86.h and neon.h: each function exists in both, and kernels use nothing else of the CPU.
// A macro announces what only some CPUs have: HAS_BF16 (`rounded`, `store` to bf16, and `add_pair_products` of words of
// two bf16), HAS_POWERS (`times_power`), HAS_ROUNDED_PAIR. Only AMX has files of its own (tiles.h).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define INLINE inline __attribute__((always_inline))
// Before a loop over registers: gcc also keeps an array in memory unless the loop is unrolled first.
#define UNROLLED _Pragma("GCC unroll 16")

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

#if defined(__x86_64__)
#include "x86.h"
#elif defined(__aarch64__)
#include "neon.h"
#else
#error "there are vector operations for x86-64 and for aarch64 only"
#endif

// Cache to which a line is prefetched.
enum Cache { FIRST = 3, SECOND = 2 };
template <Cache TO = SECOND> INLINE void prefetch(const void* line) { __builtin_prefetch(line, 0, TO); }

INLINE vf load(const bf16* p) { return as_float(left<16>(widen(&p->bits))); }
#if !defined(HAS_BF16)
// Rounds to the nearest bf16, halves to even. A NaN stays a NaN: its upper half contains the quiet bit.
INLINE vi rounded(vf a) {
    const vi x = as_int(a);
    const vi up = right<16>(add(x, add(set1_word(0x7fff), both(right<16>(x), set1_word(1)))));
    return where_nan(a, set1_word(0x7fc0), up);
}
INLINE void store(bf16* p, vf a) { narrow(&p->bits, rounded(a)); }
#endif

// Loads the first n lanes, with zeros behind them; and stores the first n lanes.
template <class T> INLINE vf load_part(const T* p, int n) {
    if (n >= LANES) return load(p);
    T part[LANES] = {};
    std::memcpy(part, p, sizeof(T) * size_t(n));
    return load(part);
}
template <class T> INLINE void store_part(T* p, vf a, int n) {
    if (n >= LANES) return store(p, a);
    T part[LANES];
    store(part, a);
    std::memcpy(p, part, sizeof(T) * size_t(n));
}

#if !defined(HAS_POWERS)
// x 2^n for a whole n; results may be denormal.
INLINE vf times_power(vf x, vf n) {
    const vi half = to_int(round(n * set1(.5f))), rest = to_int(n - round(n * set1(.5f)));
    const vf a = as_float(left<23>(add(half, set1_word(127)))), b = as_float(left<23>(add(rest, set1_word(127))));
    return x * a * b;
}
#endif

// e^x: 2^n e^r, with r in ln 2 [-1/2, 1/2] and e^r by its Taylor series: of degree 7 accurate to the last bits of a
// float, of degree 4 to 1 in 20,000.
template <int DEGREE = 7> INLINE vf exp(vf x) {
    constexpr float ONE_OVER_FACTORIAL[] = {1.f, 1.f, .5f, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720, 1.f / 5040};
    x = min(set1(89.f), max(set1(-104.f), x));  // for a NaN and a number both return the second
    const vf n = round(x * set1(1.44269504f));
    vf r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    vf p = set1(ONE_OVER_FACTORIAL[DEGREE]);
    for (int i = DEGREE - 1; i >= 0; i--) p = fma(p, r, set1(ONE_OVER_FACTORIAL[i]));
    return times_power(p, n);
}
#if !defined(HAS_ROUNDED_PAIR)
INLINE vi rounded_pair(vf low, vf high) { return either(rounded(low), left<16>(rounded(high))); }
#endif
INLINE vf tanh(vf x) {
    const vf e = exp(min(set1(20.f), x) * set1(2.f));
    return set1(1.f) - set1(2.f) / (e + set1(1.f));
}
