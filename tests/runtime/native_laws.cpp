// The laws of the compiled kernels, checked by a program alone: for CPUs that only an emulator has (test_native_laws.py).
//
// Results are compared with plain formulas in double, or bit by bit where the law says so. Prints a line for each law and
// the first faults; the exit code is 1 if there are any.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "decoder.h"
#include "few_bits.h"
#include "transpose.h"

extern "C" {
void sundog_attend(const Layer*, const Sequences*, const Rows* q, const Rows* k, const Rows* v, const Rows* out, int32_t);
void sundog_decode(const Decoder*, const Step*, int32_t);
void sundog_linear(const Linear*, const void* x, int64_t rows, void* out, int32_t format, int32_t num_threads);
const char* sundog_instructions();
int32_t sundog_multiplies_bf16();
int32_t sundog_has_team();
int32_t sundog_is_allowed();
}

namespace {

constexpr double NEVER = std::numeric_limits<double>::infinity();
constexpr float NONE = std::numeric_limits<float>::quiet_NaN();

// ---- what is checked, and how many faults there are

int num_checks = 0, num_faults = 0;
std::string law;

void fault(const std::string& what) {
    if (++num_faults <= 20) std::printf("FAULT %s: %s\n", law.c_str(), what.c_str());
}

void check(bool holds, const std::string& what) {
    num_checks++;
    if (!holds) fault(what);
}

std::string at(const char* name, long i, double found, double wanted) {
    char text[200];
    std::snprintf(text, sizeof text, "%s[%ld] is %.9g, not %.9g", name, i, found, wanted);
    return text;
}

// Each number within tolerance (1 + |wanted|); a NaN is one.
template <class A, class B> void close(const char* name, const A& found, const B& wanted, double tolerance) {
    num_checks++;
    for (size_t i = 0; i < wanted.size(); i++) {
        const double f = double(found[i]), w = double(wanted[i]);
        if (std::isnan(w) ? !std::isnan(f) : !(std::abs(f - w) <= tolerance * (1 + std::abs(w))))
            return fault(at(name, long(i), f, w));
    }
}

// ---- number formats, by what they mean

// The nearest number with `digits` binary digits, to even between two, and steps of 2^(least - digits + 1) at least.
double nearest(double x, int digits, int least, double most) {
    if (std::isnan(x) || std::isinf(x) || x == 0) return x;
    const double step = std::ldexp(1, std::max(std::ilogb(x), least) - digits + 1);
    const double r = std::nearbyint(x / step) * step;
    return std::abs(r) > most ? std::copysign(NEVER, x) : r;
}

template <class T> struct Numbers;
template <> struct Numbers<float> {
    static constexpr int FORMAT = FLOAT32, PAIR = 1;
    static constexpr double CLOSE = 1e-5, APART = 3e-6;
    static constexpr const char* NAME = "float32";
    static float from(double x) { return float(x); }
    static double value(float a) { return a; }
    static double kept(double x) { return float(x); }
};
template <> struct Numbers<bf16> {
    static constexpr int FORMAT = BFLOAT16, PAIR = 2;
    static constexpr double CLOSE = 1.5e-2, APART = 0.02;
    static constexpr const char* NAME = "bfloat16";
    static double kept(double x) { return nearest(x, 8, -126, 3.3895313892515355e38); }
    static bf16 from(double x) {
        const float a = float(kept(x));
        uint32_t bits;
        std::memcpy(&bits, &a, 4);
        return {uint16_t(bits >> 16)};
    }
    static double value(bf16 a) {
        const uint32_t bits = uint32_t(a.bits) << 16;
        float found;
        std::memcpy(&found, &bits, 4);
        return found;
    }
};
template <> struct Numbers<f16> {
    static constexpr int FORMAT = FLOAT16, PAIR = 1;
    static constexpr double CLOSE = 2e-3, APART = 0.003;
    static constexpr const char* NAME = "float16";
    static double kept(double x) { return nearest(x, 11, -14, 65504); }
    static f16 from(double x) {
        const double r = std::abs(kept(x));
        uint16_t bits = std::signbit(x) ? 0x8000 : 0;
        if (std::isnan(r)) return {uint16_t(bits | 0x7e00)};
        if (std::isinf(r)) return {uint16_t(bits | 0x7c00)};
        if (r < std::ldexp(1, -14)) return {uint16_t(bits | uint16_t(std::ldexp(r, 24)))};
        const int e = std::ilogb(r);
        return {uint16_t(bits | (e + 15) << 10 | (int(std::ldexp(r, 10 - e)) & 0x3ff))};
    }
    static double value(f16 a) {
        const int e = a.bits >> 10 & 31, m = a.bits & 0x3ff;
        const double r = e == 31 ? (m ? double(NONE) : NEVER) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
        return a.bits & 0x8000 ? -r : r;
    }
};

std::mt19937_64 random_bits;
double normal() { return std::normal_distribution<double>()(random_bits); }
long random_below(long n) { return long(random_bits() % uint64_t(n)); }

template <class T> std::vector<T> normals(size_t n, double size = 1) {
    std::vector<T> found(n);
    for (T& x : found) x = Numbers<T>::from(size * normal());
    return found;
}

template <class T> std::vector<double> values(const std::vector<T>& from) {
    std::vector<double> found;
    for (const T& x : from) found.push_back(Numbers<T>::value(x));
    return found;
}

template <class T> bool equal(const T* a, const T* b, size_t n) { return !std::memcmp(a, b, n * sizeof(T)); }

// ---- vector operations, lane by lane

using Lanes = std::vector<float>;
Lanes lanes(vf a) {
    Lanes found(LANES);
    store(found.data(), a);
    return found;
}
std::vector<uint32_t> words(vi a) {
    std::vector<uint32_t> found(LANES);
    store_words(found.data(), a);
    return found;
}

// Floats of every kind: what is no number, what lies between two of a smaller format, and any bits.
std::vector<float> floats_of_every_kind() {
    const float never = std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::denorm_min();
    std::vector<float> found = {0, -0.f, 1, -1, NONE, never, -never, least, -least, 65504, 65519, 65520, 65536, -65520,
                                std::numeric_limits<float>::max(), std::numeric_limits<float>::min(), 5.9604645e-8f, 2.9802322e-8f,
                                2.98023224e-8f, 6.0975552e-5f, 1.00390625f, 1.01171875f, 1.0004882812f, 1.0014648437f, 3.4e38f};
    for (int i = 0; i < 8192; i++) {
        const uint32_t bits = uint32_t(random_bits());
        float x;
        std::memcpy(&x, &bits, 4);
        found.push_back(x);
        found.push_back(float(normal()));
    }
    found.resize(found.size() / LANES * LANES);
    return found;
}

template <class T> void formats_are_rounded_to_the_nearest() {
    const auto all = floats_of_every_kind();
    for (size_t i = 0; i < all.size(); i += LANES) {
        T stored[LANES];
        store(stored, load(&all[i]));
        const Lanes kept_here = lanes(kept<T>(load(&all[i])));
        for (int j = 0; j < LANES; j++) {
            const double x = all[i + size_t(j)], found = Numbers<T>::value(stored[j]);
            double wanted = Numbers<T>::kept(x);
#if defined(__AVX512BF16__)
            if (std::is_same_v<T, bf16> && std::abs(x) < std::numeric_limits<float>::min()) wanted = std::copysign(0., x);
#endif
            const bool same = std::isnan(wanted) ? std::isnan(found) && std::isnan(kept_here[size_t(j)])
                                                 : found == wanted && double(kept_here[size_t(j)]) == wanted &&
                                                       std::signbit(found) == std::signbit(wanted);
            check(same, at("rounded", long(i) + j, found, wanted));
        }
    }
}

template <class T> void every_number_is_read_as_it_is() {
    for (uint32_t bits = 0; bits < 65536; bits += LANES) {
        T all[LANES];
        for (int j = 0; j < LANES; j++) all[j] = {uint16_t(bits + uint32_t(j))};
        const Lanes found = lanes(load(all));
        for (int j = 0; j < LANES; j++) {
            const double wanted = Numbers<T>::value(all[j]);
            check(std::isnan(wanted) ? std::isnan(found[size_t(j)]) : double(found[size_t(j)]) == wanted,
                  at("read", long(bits) + j, found[size_t(j)], wanted));
        }
    }
}

void functions_are_those_of_mathematics() {
    for (int i = 0; i < 4000; i++) {
        float x[LANES];
        for (float& a : x) a = float(i < 3000 ? 30 * normal() : 3 * normal());
        const Lanes exactly = lanes(exp(load(x))), roughly = lanes(exp<4>(load(x))), bent = lanes(tanh(load(x)));
        for (int j = 0; j < LANES; j++) {
            const double e = std::exp(double(std::min(89.f, std::max(-104.f, x[j]))));
            if (e < 3.4e38) {
                check(std::abs(double(exactly[size_t(j)]) - e) <= 4e-7 * e + 2e-45, at("exp", i, exactly[size_t(j)], e));
                check(std::abs(double(roughly[size_t(j)]) - e) <= 1e-4 * e + 2e-45, at("exp<4>", i, roughly[size_t(j)], e));
            }
            check(std::abs(double(bent[size_t(j)]) - std::tanh(double(x[j]))) <= 1e-6, at("tanh", i, bent[size_t(j)], std::tanh(x[j])));
            check(lanes(round(load(x)))[size_t(j)] == std::nearbyintf(x[j]), at("round", i, x[j], std::nearbyintf(x[j])));
            check(int32_t(words(to_int(load(x)))[size_t(j)]) == std::lrintf(x[j]), at("to_int", i, x[j], double(std::lrintf(x[j]))));
            check(to_int(x[j]) == std::lrintf(x[j]), at("to_int of one", i, x[j], double(std::lrintf(x[j]))));
        }
    }
    for (const float half : {.5f, 1.5f, 2.5f, -.5f, -1.5f, -2.5f}) {
        check(lanes(round(set1(half)))[0] == std::nearbyintf(half), "a half is rounded to even");
        check(to_int(half) == std::lrintf(half), "a half becomes the even number");
    }
    for (int n = -149; n < 128; n++)
        check(double(lanes(times_power(set1(1), set1(float(n))))[0]) == std::ldexp(1, n), at("2^n", n, n, n));
    check(std::isnan(lanes(exp(set1(NONE)))[0]), "e^NaN is no number");
    check(lanes(exp(set1(-INFINITY)))[0] < 1e-44f, "e^-infinity is 0, or the least number");
}

void lanes_are_where_they_belong() {
    for (int n = 1; n <= LANES; n++) {
        float from[LANES] = {}, to[LANES + 1];
        for (int i = 0; i < LANES; i++) from[i] = float(i + 1);
        std::fill_n(to, LANES + 1, -1.f);
        const Lanes part = lanes(load_part(from, n));
        store_part(to, load(from), n);
        for (int i = 0; i < LANES; i++) {
            check(part[size_t(i)] == (i < n ? from[i] : 0), "load_part");
            check(to[i] == (i < n ? from[i] : -1), "store_part");
        }
    }
    for (int first = -3; first <= LANES + 2; first++)
        for (int end = first; end <= LANES + 2; end++) {
            const Lanes seen = lanes(only(set1(1), first, end));
            for (int i = 0; i < LANES; i++) check(seen[size_t(i)] == (i >= first && i < end ? 1 : -INFINITY), "only");
        }
    float numbers[LANES];
    double total = 0;
    for (int i = 0; i < LANES; i++) total += numbers[i] = float(i * i - 20);
    check(double(sum(load(numbers))) == total, "sum");
    check(largest(load(numbers)) == *std::max_element(numbers, numbers + LANES), "largest");
    check(lanes(max(set1(NONE), set1(1)))[0] == 1 && std::isnan(lanes(max(set1(1), set1(NONE)))[0]), "max: the second of a NaN");
    check(lanes(min(set1(NONE), set1(1)))[0] == 1 && std::isnan(lanes(min(set1(1), set1(NONE)))[0]), "min: the second of a NaN");
    for (int first = -127; first + LANES <= 128; first++) {
        uint32_t wide[LANES];
        int8_t bytes[LANES];
        uint16_t shorts[LANES];
        for (int i = 0; i < LANES; i++) wide[i] = uint32_t(first + i);
        narrow(bytes, load_words(wide));
        narrow(shorts, both(load_words(wide), set1_word(0xffff)));
        const Lanes as_floats = lanes(as_number(load_words(wide)));
        for (int i = 0; i < LANES; i++)
            check(bytes[i] == first + i && shorts[i] == uint16_t(first + i) && as_floats[size_t(i)] == float(first + i) &&
                      words(widen(shorts))[size_t(i)] == uint16_t(first + i), "narrow and widen");
    }
    uint32_t rows[LANES][3 * LANES], turned[LANES * (LANES + 1)];
    const uint32_t* at_rows[LANES];
    for (int i = 0; i < LANES; i++) {
        at_rows[i] = rows[i];
        for (int j = 0; j < 3 * LANES; j++) rows[i][j] = uint32_t(1000 * i + j);
    }
    transpose(at_rows, LANES, turned, LANES + 1);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) check(turned[i * (LANES + 1) + j] == rows[j][LANES + i], "transpose");
    uint16_t a[2 * LANES], b[2 * LANES];
    uint32_t side_by_side[2 * LANES];
    for (int i = 0; i < 2 * LANES; i++) a[i] = uint16_t(i + 1), b[i] = uint16_t(0xf000 + i);
    interleave(a, b, side_by_side);
    for (int i = 0; i < 2 * LANES; i++) check(side_by_side[i] == (uint32_t(b[i]) << 16 | a[i]), "interleave");
    for (int i = 0; i < 500; i++) {
        float low[LANES], high[LANES];
        for (int j = 0; j < LANES; j++) low[j] = float(normal()), high[j] = float(normal());
        const auto pairs = words(rounded_pair(load(low), load(high)));
        for (int j = 0; j < LANES; j++)
            check(uint16_t(pairs[size_t(j)]) == Numbers<bf16>::from(low[j]).bits && pairs[size_t(j)] >> 16 == Numbers<bf16>::from(high[j]).bits,
                  "rounded_pair");
    }
}

// Four neighbours to a lane, of the first without a sign: exactly, the largest too.
void products_of_bytes_are_exact() {
    for (int i = 0; i < 2000; i++) {
        uint8_t a[4 * LANES];
        int8_t b[4 * LANES];
        for (int j = 0; j < 4 * LANES; j++) {
            a[j] = uint8_t(i < 4 ? (i & 1 ? 255 : 0) : random_below(256));
            b[j] = int8_t(i < 4 ? (i & 2 ? 127 : -127) : random_below(255) - 127);
        }
        uint32_t begin[LANES];
        for (int j = 0; j < LANES; j++) {
            begin[j] = uint32_t(random_below(1000));
            for (int k = 0; k < 4; k++) begin[j] += uint32_t(BYTES_LESS * b[4 * j + k]);
        }
        const auto found = words(add_byte_products(load_words(begin), fewer(load_words((uint32_t*)a)), load_words((uint32_t*)b)));
        for (int j = 0; j < LANES; j++) {
            int wanted = int(begin[j]);
            for (int k = 0; k < 4; k++) wanted += (int(a[4 * j + k]) - BYTES_LESS) * b[4 * j + k];
            check(int(found[size_t(j)]) == wanted, at("product of bytes", i, int(found[size_t(j)]), wanted));
        }
    }
}

// ---- linear layers

template <class T> std::vector<T> multiply(const Linear& l, const T* x, int64_t rows, int num_threads) {
    std::vector<T> out(size_t(rows * l.num_out), Numbers<T>::from(NONE));
    sundog_linear(&l, x, rows, out.data(), Numbers<T>::FORMAT, num_threads);
    return out;
}

// Some rows at a time on one thread have the bits that all have on three.
template <class T> void rows_have_the_same_bits_among_many(const Linear& l, const std::vector<T>& x, const std::vector<T>& many) {
    const int64_t rows = int64_t(x.size()) / l.num_in;
    for (int64_t first = 0, n = 1; first < rows; first += n, n = n % 14 + 1) {
        const int64_t num = std::min(n, rows - first);
        const auto few = multiply(l, &x[size_t(first * l.num_in)], num, 1);
        check(equal(few.data(), &many[size_t(first * l.num_out)], few.size()),
              "rows " + std::to_string(first) + " to " + std::to_string(first + num) + " of " + std::to_string(rows) + " have other bits alone");
    }
}

// Weights [O][I] in blocks of columns, as linear.h has them.
template <class T> std::vector<T> packed(const std::vector<T>& weight, int64_t num_in, int64_t num_out) {
    constexpr int64_t PAIR = Numbers<T>::PAIR;
    std::vector<T> found(size_t((num_out + BLOCK - 1) / BLOCK * BLOCK * num_in));
    for (int64_t o = 0; o < num_out; o++)
        for (int64_t i = 0; i < num_in; i++)
            found[size_t(((o / BLOCK * (num_in / PAIR) + i / PAIR) * BLOCK + o % BLOCK) * PAIR + i % PAIR)] = weight[size_t(o * num_in + i)];
    return found;
}

template <class T> void linear_layers_are_the_plain_formula(bool is_packed) {
    const int64_t sizes[][2] = {{32, 64}, {96, 200}, {162, 48}, {544, 130}, {37, 70}};
    for (const auto& [num_in, num_out] : sizes)
        for (const int64_t rows : {1, 2, 3, 4, 7, 47, 64, 97, 130}) {
            if (is_packed && num_in % Numbers<T>::PAIR) continue;
            const auto weight = normals<T>(size_t(num_in * num_out), 1 / std::sqrt(num_in)), bias = normals<T>(size_t(num_out));
            const auto x = normals<T>(size_t(rows * num_in)), in_blocks = packed(weight, num_in, num_out);
            const Linear l{is_packed ? in_blocks.data() : weight.data(), rows % 2 ? bias.data() : nullptr, num_in, num_out,
                           is_packed ? BLOCK : 0, 0, nullptr};
            const auto many = multiply(l, x.data(), rows, 3);
            const auto w = values(weight), b = values(bias), in = values(x);
            std::vector<double> wanted;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t o = 0; o < num_out; o++) {
                    double sum = l.bias ? b[size_t(o)] : 0;
                    for (int64_t i = 0; i < num_in; i++) sum += in[size_t(r * num_in + i)] * w[size_t(o * num_in + i)];
                    wanted.push_back(sum);
                }
            close("product", values(many), wanted, Numbers<T>::CLOSE);
            rows_have_the_same_bits_among_many(l, x, many);
        }
}

// Whole numbers of 8 or 4 bits: to the bit what few_bits.h says in words, on any CPU.
template <class T> void products_of_few_bits_are_those_of_any_cpu(int bits, int group = GROUP, bool has_halves = false, bool has_least = false) {
    for (const int64_t num_in : {128, 384})
        for (const int64_t num_out : {64, 200})
            for (const int64_t rows : {1, 2, 5, 6, 7, 40}) {
                const int64_t groups = num_in / group, unit = group == GROUP ? GROUP : FINE, blocks = (num_out + BLOCK - 1) / BLOCK;
                const int most = (1 << (bits - 1)) - 1;
                std::vector<int> number(size_t(blocks * BLOCK * num_in));
                const int offset = has_least ? 0 : 1 << (bits - 1);
                for (int& n : number) n = has_least ? int(random_below(2 * most + 2)) : int(random_below(2 * most + 1)) - most;
                for (int64_t i = 0; i < num_in; i++) number[size_t(i)] = i % 3 ? most : has_least ? 0 : -most;
                std::vector<uint8_t> bytes(number.size() * size_t(bits) / 8);
                for (int64_t o = 0; o < blocks * BLOCK; o++)
                    for (int64_t i = 0; i < num_in; i++) {
                        const auto n = uint8_t(number[size_t(o * num_in + i)] + offset);
                        const int64_t block = o / BLOCK, c = o % BLOCK;
                        if (bits == 8) bytes[size_t(((block * num_in / 4 + i / 4) * BLOCK + c) * 4 + i % 4)] = n;
                        else bytes[size_t(((block * num_in / 8 + i / 8) * BLOCK + c) * 4 + i % 4)] |= uint8_t(i % 8 < 4 ? n : n << 4);
                    }
                std::vector<float> scale(size_t(blocks * groups * BLOCK));
                for (float& s : scale) s = float(0.01 * std::abs(normal()) + 1e-4);
                std::vector<float> least(scale.size());
                for (float& m : least) m = float(0.1 * normal());
                std::vector<f16> halves, least_halves;
                for (size_t i = 0; has_halves && i < scale.size(); i++) {
                    halves.push_back(Numbers<f16>::from(scale[i])), least_halves.push_back(Numbers<f16>::from(least[i]));
                    scale[i] = float(Numbers<f16>::value(halves[i])), least[i] = float(Numbers<f16>::value(least_halves[i]));
                }
                const auto bias = normals<T>(size_t(num_out));
                auto x = normals<T>(size_t(rows * num_in));
                for (int64_t i = 0; rows > 1 && i < num_in; i++) x[size_t(num_in + i)] = Numbers<T>::from(i % 2 ? 5 : -5);
                if (rows > 5) x[size_t(5 * num_in + 3)] = Numbers<T>::from(NONE), x[size_t(4 * num_in + 3)] = Numbers<T>::from(NEVER);
                if (rows > 2) std::fill_n(x.begin() + 2 * num_in, num_in, Numbers<T>::from(0));
                const Linear l{bytes.data(), num_out > 64 ? bias.data() : nullptr, num_in, num_out, BLOCK, bits,
                               has_halves ? (const void*)halves.data() : scale.data(),
                               !has_least ? nullptr : has_halves ? (const void*)least_halves.data() : least.data(), group, has_halves};
                std::vector<T> wanted;
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t o = 0; o < num_out; o++) {
                        float sum = 0;
                        for (int64_t g = 0; g < groups; g++) {
                            float largest = 0;
                            bool is_none = false;
                            for (int64_t i = g * group / unit * unit; i < g * group / unit * unit + unit; i++) {
                                const auto a = float(Numbers<T>::value(x[size_t(r * num_in + i)]));
                                largest = std::max(largest, std::abs(a)), is_none |= !std::isfinite(a);
                            }
                            const float to_units = largest > 1e-30f ? 127 / largest : 0;
                            long whole = 0, total = 0;
                            for (int64_t i = g * group; !is_none && i < (g + 1) * group; i++) {
                                const long input = std::lrintf(float(Numbers<T>::value(x[size_t(r * num_in + i)])) * to_units);
                                whole += input * number[size_t(o * num_in + i)], total += input;
                            }
                            const float size = is_none ? NONE : largest / 127;
                            const auto column = size_t((o / BLOCK * groups + g) * BLOCK + o % BLOCK);
                            sum = std::fmaf(float(whole), size * scale[column], sum);
                            if (has_least) sum = std::fmaf(size * float(total), least[column], sum);
                        }
                        if (l.bias) sum += float(Numbers<T>::value(bias[size_t(o)]));
                        wanted.push_back(Numbers<T>::from(sum));
                    }
                const auto many = multiply(l, x.data(), rows, 3);
                close("product of few bits", values(many), values(wanted), 0);
                rows_have_the_same_bits_among_many(l, x, many);
            }
}

// ---- attention

struct Kind {
    int key_heads, group, key_width, value_width, block_size;
    int64_t window;
    float softcap;
    bool has_sinks;
};

// Requests of `first` old tokens and `queries` new ones each, on scattered blocks of one cache.
template <class T> class Attended {
  public:
    struct Request {
        int64_t first, queries;
        std::vector<T> q, k, v;  // all tokens of k and v
        std::vector<int64_t> blocks;
    };

    Attended(const Kind& kind, const std::vector<std::pair<int64_t, int64_t>>& counts) : kind_(kind) {
        int64_t num_blocks = 1;
        for (const auto& [first, queries] : counts) num_blocks += (first + queries + kind.block_size - 1) / kind.block_size;
        std::vector<int64_t> order;
        for (int64_t b = 1; b < num_blocks; b++) order.push_back(b);
        std::shuffle(order.begin(), order.end(), random_bits);
        for (const auto& [first, queries] : counts) {
            const int64_t all = first + queries, n = (all + kind.block_size - 1) / kind.block_size;
            Request r{first, queries, normals<T>(size_t(queries * heads() * kind.key_width)),
                      normals<T>(size_t(all * kind.key_heads * kind.key_width)), normals<T>(size_t(all * kind.key_heads * kind.value_width)),
                      {order.end() - n, order.end()}};
            order.resize(order.size() - size_t(n));
            requests.push_back(r);
        }
        keys_.assign(size_t(num_blocks * kind.block_size * kind.key_heads * kind.key_width), Numbers<T>::from(NONE));
        values_.assign(size_t(num_blocks * kind.block_size * kind.key_heads * kind.value_width), Numbers<T>::from(NONE));
        for (int i = 0; kind.has_sinks && i < heads(); i++) sinks_.push_back(float(normal()));
        for (const Request& r : requests)
            for (int64_t t = 0; t < r.first; t++) {
                std::copy_n(&r.k[size_t(t * key_row())], key_row(), &keys_[size_t(slot(r, t) * key_row())]);
                std::copy_n(&r.v[size_t(t * value_row())], value_row(), &values_[size_t(slot(r, t) * value_row())]);
            }
    }

    // The answers to queries `begin ... end` of some requests in one step, `end` being 0 for all of them.
    std::vector<T> answer(const std::vector<int>& which, int64_t begin, int64_t end, int num_threads) {
        std::vector<int64_t> start{0}, position, table, slots;
        std::vector<T> q, k, v;
        for (const int i : which) {
            const Request& r = requests[size_t(i)];
            const int64_t last = end ? end : r.queries;
            position.push_back(r.first + begin), table.push_back(int64_t(r.blocks.data()));
            for (int64_t t = begin; t < last; t++) {
                slots.push_back(slot(r, r.first + t));
                const auto add = [t](std::vector<T>& to, const std::vector<T>& from, int64_t row, int64_t first) {
                    to.insert(to.end(), from.begin() + (first + t) * row, from.begin() + (first + t + 1) * row);
                };
                add(q, r.q, heads() * kind_.key_width, 0), add(k, r.k, key_row(), r.first), add(v, r.v, value_row(), r.first);
            }
            start.push_back(int64_t(slots.size()));
        }
        const Layer layer{keys_.data(), values_.data(), Numbers<T>::FORMAT, heads(), kind_.key_heads, kind_.key_width, kind_.value_width,
                          kind_.block_size, SCALING, kind_.softcap, kind_.window, sinks_.empty() ? nullptr : sinks_.data()};
        const Sequences s{int64_t(which.size()), start.data(), position.data(), table.data(), slots.data()};
        std::vector<T> out(slots.size() * size_t(heads() * kind_.value_width), Numbers<T>::from(NONE));
        const Rows rows[] = {{q.data(), heads() * kind_.key_width, kind_.key_width}, {k.data(), key_row(), kind_.key_width},
                             {v.data(), value_row(), kind_.value_width}, {out.data(), heads() * kind_.value_width, kind_.value_width}};
        sundog_attend(&layer, &s, &rows[0], &rows[1], &rows[2], &rows[3], num_threads);
        return out;
    }

    std::vector<double> exact(const Request& r) const {
        const auto q = values(r.q), k = values(r.k), v = values(r.v);
        std::vector<double> out;
        for (int64_t t = 0; t < r.queries; t++)
            for (int h = 0; h < heads(); h++) {
                const int64_t last = r.first + t, first = kind_.window ? std::max<int64_t>(0, last + 1 - kind_.window) : 0;
                std::vector<double> score;
                for (int64_t j = first; j <= last; j++) {
                    double dot = 0;
                    for (int e = 0; e < kind_.key_width; e++)
                        dot += q[size_t((t * heads() + h) * kind_.key_width + e)] * k[size_t(j * key_row() + h / kind_.group * kind_.key_width + e)];
                    dot *= double(SCALING);
                    score.push_back(kind_.softcap ? std::tanh(dot / kind_.softcap) * kind_.softcap : dot);
                }
                double most = *std::max_element(score.begin(), score.end());
                if (!sinks_.empty()) most = std::max(most, double(sinks_[size_t(h)]));
                double total = sinks_.empty() ? 0 : std::exp(double(sinks_[size_t(h)]) - most);
                for (double& s : score) total += s = std::exp(s - most);
                for (int e = 0; e < kind_.value_width; e++) {
                    double sum = 0;
                    for (int64_t j = first; j <= last; j++)
                        sum += score[size_t(j - first)] * v[size_t(j * value_row() + h / kind_.group * kind_.value_width + e)];
                    out.push_back(sum / total);
                }
            }
        return out;
    }

    int heads() const { return kind_.key_heads * kind_.group; }
    std::vector<Request> requests;

  private:
    static constexpr float SCALING = 0.3f;
    int64_t key_row() const { return kind_.key_heads * kind_.key_width; }
    int64_t value_row() const { return kind_.key_heads * kind_.value_width; }
    int64_t slot(const Request& r, int64_t t) const { return r.blocks[size_t(t / kind_.block_size)] * kind_.block_size + t % kind_.block_size; }

    const Kind kind_;
    std::vector<T> keys_, values_;
    std::vector<float> sinks_;
};

// The plain formula; and the same bits alone and among others, whatever the chunks and threads.
template <class T> void attention_is_the_plain_formula() {
    const Kind kinds[] = {{1, 1, 64, 64, 16, 0, 0, false},  {2, 2, 128, 128, 16, 0, 0, false}, {1, 3, 64, 128, 48, 9, 0, true},
                          {2, 4, 64, 64, 4, 64, 0, false},  {3, 5, 15, 5, 1, 0, 3, true},       {2, 7, 24, 16, 128, 200, 0, false},
                          {8, 1, 4, 96, 16, 1, 3, false},   {2, 2, 80, 80, 4, 100, 0, true}};
    for (const Kind& kind : kinds) {
        Attended<T> all(kind, {{0, 1}, {63, 1}, {130, 1}, {7, 70}, {200, 1}, {0, 33}});
        std::vector<int> which;
        for (size_t i = 0; i < all.requests.size(); i++) which.push_back(int(i));
        const auto together = all.answer(which, 0, 0, 3);
        size_t from = 0;
        for (const int i : which) {
            const auto& r = all.requests[size_t(i)];
            const auto alone = all.answer({i}, 0, 0, 1);
            close("attention", values(alone), all.exact(r), Numbers<T>::CLOSE);
            check(equal(alone.data(), &together[from], alone.size()), "request " + std::to_string(i) + " has other bits among others");
            from += alone.size();
            const size_t row = alone.size() / size_t(r.queries);
            for (int64_t t = 0, n = 1; t < r.queries && r.queries > 1; t += n, n = n % 9 + 1) {
                const int64_t end = std::min(t + n, r.queries);
                const auto chunk = all.answer({i}, t, end, 2);
                check(equal(chunk.data(), &alone[size_t(t) * row], chunk.size()), "a chunk from query " + std::to_string(t) + " has other bits");
            }
        }
    }
}

// ---- a whole step

// Two layers as Qwen3 has them: norms of heads, halves turned, keys for two queries each.
template <class T> class Small {
  public:
    static constexpr int64_t WIDTH = 64, HEADS = 4, KEY_HEADS = 2, HEAD = 32, MLP = 96, VOCAB = 100, LAYERS = 2, LONGEST = 64;

    Small() {
        embedding_ = normals<T>(size_t(VOCAB * WIDTH));
        for (auto* table : {&cos_, &sin_})
            for (int64_t p = 0; p < LONGEST; p++)
                for (int64_t i = 0; i < HEAD; i++) {
                    const double angle = double(p) * std::pow(10000., -double(i % (HEAD / 2)) / (HEAD / 2));
                    table->push_back(float(Numbers<T>::kept(table == &cos_ ? std::cos(angle) : std::sin(angle))));
                }
        for (Part& part : layers_) {
            const int64_t sizes[][2] = {{WIDTH, HEADS * HEAD}, {WIDTH, KEY_HEADS * HEAD}, {WIDTH, KEY_HEADS * HEAD}, {HEADS * HEAD, WIDTH},
                                        {WIDTH, MLP}, {WIDTH, MLP}, {MLP, WIDTH}};
            for (int i = 0; i < 7; i++) part.linear[i] = make(sizes[i][0], sizes[i][1]);
            for (auto& norm : part.norm)
                for (int64_t i = 0; i < WIDTH; i++) norm.push_back(float(1 + 0.1 * normal()));
            part.keys.assign(size_t(LONGEST * 8 * KEY_HEADS * HEAD), Numbers<T>::from(NONE)), part.values = part.keys;
        }
        head_ = make(WIDTH, VOCAB);
        for (int64_t i = 0; i < WIDTH; i++) last_norm_.push_back(float(1 + 0.1 * normal()));
        for (int64_t b = 0; b < LONGEST / BLOCK_SIZE; b++) table_.push_back(b);
    }

    // The logits of all tokens' last positions: sequences one after the other in blocks of their own, from position 0.
    std::vector<T> logits(const std::vector<std::vector<int64_t>>& sequences, int64_t already, int num_threads) {
        std::vector<int64_t> start{0}, position, at, slots, token, positions, sampled, tables;
        std::vector<std::vector<int64_t>> blocks;
        for (size_t i = 0; i < sequences.size(); i++) {
            std::vector<int64_t> mine;
            for (const int64_t b : table_) mine.push_back(b + int64_t(i) * LONGEST / BLOCK_SIZE);
            blocks.push_back(mine);
        }
        for (size_t i = 0; i < sequences.size(); i++) {
            position.push_back(already), tables.push_back(int64_t(blocks[i].data()));
            for (int64_t t = already; t < int64_t(sequences[i].size()); t++) {
                token.push_back(sequences[i][size_t(t)]), positions.push_back(t);
                slots.push_back(int64_t(i) * LONGEST + t);
            }
            start.push_back(int64_t(token.size())), sampled.push_back(int64_t(token.size()) - 1);
        }
        std::vector<DecoderLayer> layers(LAYERS);
        for (int64_t i = 0; i < LAYERS; i++) {
            Part& p = layers_[i];
            DecoderLayer& l = layers[size_t(i)];
            l.attention = {p.keys.data(), p.values.data(), Numbers<T>::FORMAT, HEADS, KEY_HEADS, HEAD, HEAD, BLOCK_SIZE,
                           float(1 / std::sqrt(double(HEAD))), 0, 0, nullptr};
            l.before_attention = {p.norm[0].data(), WIDTH, EPS}, l.before_mlp = {p.norm[1].data(), WIDTH, EPS};
            l.after_attention = l.after_mlp = {nullptr, WIDTH, 0};  // none, and what is added is as wide
            l.of_queries = {p.norm[2].data(), HEAD, EPS}, l.of_keys = {p.norm[3].data(), HEAD, EPS};
            Linear* const to[] = {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down};
            for (int j = 0; j < 7; j++) *to[j] = p.linear[j].record();
            l.cos = cos_.data(), l.sin = sin_.data(), l.rotary = HALVES;
        }
        Decoder d{};
        d.layers = layers.data(), d.num_layers = LAYERS, d.width = WIDTH, d.mlp_width = MLP, d.vocab_size = VOCAB, d.num_chosen = 1;
        d.embedding = embedding_.data(), d.last_norm = {last_norm_.data(), WIDTH, EPS}, d.head = head_.record(), d.rotary_width = HEAD;
        d.embedding_scale = d.residual_scale = d.logit_scale = 1, d.gating = SILU, d.format = Numbers<T>::FORMAT;
        const Sequences s{int64_t(sequences.size()), start.data(), position.data(), tables.data(), slots.data()};
        std::vector<T> found(sequences.size() * size_t(VOCAB), Numbers<T>::from(NONE));
        const Step step{&s, token.data(), positions.data(), sampled.data(), nullptr, found.data(), 0, LAYERS, int64_t(sampled.size())};
        sundog_decode(&d, &step, num_threads);
        return found;
    }

    // The same of one sequence in double.
    std::vector<double> exact(const std::vector<int64_t>& tokens) const {
        const size_t n = tokens.size();
        std::vector<std::vector<double>> x(n);
        for (size_t t = 0; t < n; t++)
            for (int64_t i = 0; i < WIDTH; i++) x[t].push_back(Numbers<T>::value(embedding_[size_t(tokens[t] * WIDTH + i)]));
        for (const Part& p : layers_) {
            std::vector<std::vector<double>> q(n), k(n), v(n);
            for (size_t t = 0; t < n; t++) {
                const auto normed = norm(x[t], p.norm[0], WIDTH);
                q[t] = turned(norm(p.linear[0].of(normed), p.norm[2], HEAD), t), k[t] = turned(norm(p.linear[1].of(normed), p.norm[3], HEAD), t);
                v[t] = p.linear[2].of(normed);
            }
            for (size_t t = 0; t < n; t++) {
                std::vector<double> attended(size_t(HEADS * HEAD));
                for (int64_t h = 0; h < HEADS; h++) {
                    std::vector<double> weight;
                    double total = 0;
                    for (size_t j = 0; j <= t; j++) {
                        double dot = 0;
                        for (int64_t e = 0; e < HEAD; e++)
                            dot += q[t][size_t(h * HEAD + e)] * k[j][size_t(h / (HEADS / KEY_HEADS) * HEAD + e)];
                        weight.push_back(std::exp(dot / std::sqrt(double(HEAD)))), total += weight.back();
                    }
                    for (size_t j = 0; j <= t; j++)
                        for (int64_t e = 0; e < HEAD; e++)
                            attended[size_t(h * HEAD + e)] += weight[j] / total * v[j][size_t(h / (HEADS / KEY_HEADS) * HEAD + e)];
                }
                const auto more = p.linear[3].of(attended);
                for (size_t i = 0; i < more.size(); i++) x[t][i] += more[i];
                const auto normed = norm(x[t], p.norm[1], WIDTH);
                auto gate = p.linear[4].of(normed);
                const auto up = p.linear[5].of(normed);
                for (size_t i = 0; i < gate.size(); i++) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
                const auto last = p.linear[6].of(gate);
                for (size_t i = 0; i < last.size(); i++) x[t][i] += last[i];
            }
        }
        return head_.of(norm(x[n - 1], last_norm_, WIDTH));
    }

  private:
    static constexpr float EPS = 1e-6f;
    static constexpr int BLOCK_SIZE = 4;
    struct Weights {
        int64_t num_in, num_out;
        std::vector<T> plain, in_blocks;
        Linear record() const { return {in_blocks.data(), nullptr, num_in, num_out, BLOCK, 0, nullptr}; }
        std::vector<double> of(const std::vector<double>& x) const {
            std::vector<double> out;
            for (int64_t o = 0; o < num_out; o++) {
                double sum = 0;
                for (int64_t i = 0; i < num_in; i++) sum += x[size_t(i)] * Numbers<T>::value(plain[size_t(o * num_in + i)]);
                out.push_back(sum);
            }
            return out;
        }
    };
    struct Part {
        Weights linear[7];
        std::vector<float> norm[4];
        std::vector<T> keys, values;
    };
    static Weights make(int64_t num_in, int64_t num_out) {
        Weights w{num_in, num_out, normals<T>(size_t(num_in * num_out), 1 / std::sqrt(double(num_in))), {}};
        w.in_blocks = packed(w.plain, num_in, num_out);
        return w;
    }
    static std::vector<double> norm(std::vector<double> x, const std::vector<float>& weight, int64_t width) {
        for (size_t first = 0; first < x.size(); first += size_t(width)) {
            double squares = 0;
            for (int64_t i = 0; i < width; i++) squares += x[first + size_t(i)] * x[first + size_t(i)];
            for (int64_t i = 0; i < width; i++) x[first + size_t(i)] *= double(weight[size_t(i)]) / std::sqrt(squares / double(width) + double(EPS));
        }
        return x;
    }
    std::vector<double> turned(std::vector<double> x, size_t position) const {
        for (size_t h = 0; h < x.size(); h += HEAD)
            for (size_t i = 0; i < HEAD / 2; i++) {
                const double a = x[h + i], b = x[h + HEAD / 2 + i], c = cos_[position * HEAD + i], s = sin_[position * HEAD + i];
                x[h + i] = a * c - b * s, x[h + HEAD / 2 + i] = b * c + a * s;
            }
        return x;
    }

    std::vector<T> embedding_;
    std::vector<float> cos_, sin_, last_norm_;
    Part layers_[LAYERS];
    Weights head_;
    std::vector<int64_t> table_;
};

template <class T> void a_step_is_the_model_of_its_formula() {
    Small<T> model;
    std::vector<std::vector<int64_t>> sequences;
    for (const int length : {1, 5, 33, 60}) {
        sequences.emplace_back();
        for (int i = 0; i < length; i++) sequences.back().push_back(random_below(Small<T>::VOCAB));
    }
    const auto together = model.logits(sequences, 0, 3);
    for (size_t i = 0; i < sequences.size(); i++) {
        const auto alone = model.logits({sequences[i]}, 0, 1);
        check(equal(alone.data(), &together[i * Small<T>::VOCAB], alone.size()), "sequence " + std::to_string(i) + " has other logits among others");
        const auto exact = model.exact(sequences[i]);
        double apart = 0, size = 0;
        for (size_t j = 0; j < exact.size(); j++) {
            apart += std::pow(Numbers<T>::value(alone[j]) - exact[j], 2), size += exact[j] * exact[j];
        }
        check(std::sqrt(apart / size) < Numbers<T>::APART, at("logits' distance", long(i), std::sqrt(apart / size), Numbers<T>::APART));
        if (sequences[i].size() < 2) continue;
        auto shorter = sequences[i];
        shorter.pop_back();
        model.logits({shorter}, 0, 2);
        const auto decoded = model.logits({sequences[i]}, int64_t(shorter.size()), 2);
        check(equal(alone.data(), decoded.data(), alone.size()), "a decode step has other logits than the prompt");
    }
}

void test(const std::string& name, const std::function<void()>& f) {
    law = name, random_bits.seed(1);
    const int checks = num_checks, faults = num_faults;
    f();
    std::printf("%s %s (%d checks)\n", num_faults == faults ? "holds" : "FAILS", name.c_str(), num_checks - checks);
    std::fflush(stdout);
}

template <class T> void test_format() {
    const std::string name = std::string(" (") + Numbers<T>::NAME + ")";
    test("linear layers are the plain formula, a row's bits those among many" + name, [] { linear_layers_are_the_plain_formula<T>(false); });
    test("packed layers are the plain formula, a row's bits those among many" + name, [] { linear_layers_are_the_plain_formula<T>(true); });
    test("products of 8 bits are those of any CPU" + name, [] { products_of_few_bits_are_those_of_any_cpu<T>(8); });
    test("products of 4 bits are those of any CPU" + name, [] { products_of_few_bits_are_those_of_any_cpu<T>(4); });
    test("products of small groups of few bits are those of any CPU" + name, [] {
        for (const int bits : {8, 4})
            for (const int group : {FINE, PART})
                for (const bool has_halves : {false, true})
                    for (const bool has_least : {false, true})
                        products_of_few_bits_are_those_of_any_cpu<T>(bits, group, has_halves, has_least);
    });
    test("attention is the plain formula, alone and among others" + name, attention_is_the_plain_formula<T>);
    test("a step is the model of its formula" + name, a_step_is_the_model_of_its_formula<T>);
}

}  // namespace

int main() {
    std::printf("instructions: %s; bf16 in pairs: %d; threads: %d\n", sundog_instructions(), sundog_multiplies_bf16(), sundog_has_team());
    if (!sundog_is_allowed()) return std::printf("the system gives no tiles\n"), 1;
    test("formats are rounded to the nearest (bfloat16)", formats_are_rounded_to_the_nearest<bf16>);
    test("formats are rounded to the nearest (float16)", formats_are_rounded_to_the_nearest<f16>);
    test("every number is read as it is (bfloat16)", every_number_is_read_as_it_is<bf16>);
    test("every number is read as it is (float16)", every_number_is_read_as_it_is<f16>);
    test("functions are those of mathematics", functions_are_those_of_mathematics);
    test("lanes are where they belong", lanes_are_where_they_belong);
    test("products of bytes are exact", products_of_bytes_are_exact);
    test_format<float>();
    test_format<bf16>();
    test_format<f16>();
    std::printf("%d faults in %d checks\n", num_faults, num_checks);
    return num_faults > 0;
}
