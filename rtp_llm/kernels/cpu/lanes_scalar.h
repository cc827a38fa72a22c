// One float lane: the plain C++ version of every kernel. Included by lanes.h only.
#pragma once

#include <cstdint>
#include <cstring>

#include "rtp_llm/kernels/common/dtype.h"

#define RTP_LLM_LANES_NAMESPACE scalar

namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE {

using Vec = float;
constexpr int kWidth = 1;
constexpr int kTileRows = 4;
constexpr int kTileVecs = 2;

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline Vec zero() { return 0.0f; }
inline Vec set(float x) { return x; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec sub(Vec a, Vec b) { return a - b; }
inline Vec mul(Vec a, Vec b) { return a * b; }
inline Vec div(Vec a, Vec b) { return a / b; }
// A NaN in the second argument stays.
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return b < a ? b : a; }
inline Vec round_even(Vec x) { return __builtin_rintf(x); }
// `power` is whole and at least -150. Two factors, so that small results are rounded only once.
inline Vec scale_by_power_of_two(Vec x, Vec power) {
  if (power != power) return power;
  const int whole = power > 200.0f ? 200 : static_cast<int>(power);
  const int half = whole >> 1;
  const float first = from_bits(static_cast<uint32_t>(half + 127) << 23);
  return x * first * from_bits(static_cast<uint32_t>(whole - half + 127) << 23);
}
inline float reduce_add(Vec x) { return x; }
inline float reduce_max(Vec x) { return x; }

inline Vec load(const float* p) { return *p; }
inline Vec load(const BFloat16* p) { return from_bits(static_cast<uint32_t>(p->bits) << 16); }
inline Vec load(const Float16* p) {
  const uint32_t sign = static_cast<uint32_t>(p->bits & 0x8000u) << 16;
  const uint32_t rest = p->bits & 0x7fffu;
  if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | (rest << 13));
  // The exponent moves from bias 15 to bias 127 by a product, which is exact for subnormals too.
  const float magnitude = from_bits(rest << 13) * from_bits((127u + 112u) << 23);
  return from_bits(sign | bits_of(magnitude));
}
template <class T>
inline Vec load_first(const T*, int) {
  return 0.0f;
}

inline void store(float* p, Vec x) { *p = x; }
inline void store(BFloat16* p, Vec x) {
  const uint32_t bits = bits_of(x);
  const uint32_t up = bits + 0x7fffu + ((bits >> 16) & 1u);
  p->bits = x != x ? uint16_t{0x7fc0} : static_cast<uint16_t>(up >> 16);
}
inline void store(Float16* p, Vec x) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  uint32_t half = 0x7e00u;
  if (rest < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low mantissa bits.
    half = bits_of(from_bits(rest) + 0.5f) - bits_of(0.5f);
  } else if (rest < 0x47800000u) {
    half = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  } else if (rest <= 0x7f800000u) {
    half = 0x7c00u;
  }
  p->bits = static_cast<uint16_t>(sign | half);
}
template <class T>
inline void store_first(T*, Vec, int) {}

// x when lane 0 lies in [first, last), else `other`.
inline Vec select_range(Vec x, int first, int last, Vec other) {
  return first <= 0 && last > 0 ? x : other;
}

constexpr bool kHasDotBFloat16 = false;
inline Vec dot_bfloat16(Vec, Vec, Vec sum) { return sum; }
inline Vec interleave(Vec even, Vec) { return even; }

inline void prefetch(const void* p) { __builtin_prefetch(p); }

inline void transpose(Vec*) {}
inline Vec reduce_add_each(Vec* r) { return r[0]; }

}  // namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE
