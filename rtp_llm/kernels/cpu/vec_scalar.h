// SPDX-License-Identifier: Apache-2.0
// One float32 at a time: the portable variant, and the one that others are tested against.
#pragma once

namespace rtp_llm::cpu::scalar {

struct Vec {
  static constexpr int kWidth = 1;
  float value;

  static Vec set(float x) { return {x}; }
  static Vec zero() { return {0.0f}; }

  static Vec load(const float* p) { return {*p}; }
  static Vec load(const BFloat16* p) {
    const uint32_t bits = static_cast<uint32_t>(p->bits) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return {x};
  }
  static Vec load(const Float16* p) {
    const uint32_t sign = static_cast<uint32_t>(p->bits & 0x8000U) << 16;
    const uint32_t magnitude = p->bits & 0x7fffU;
    float x;
    if (magnitude >= 0x7c00U) {  // infinity and NaN
      const uint32_t bits = sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13);
      std::memcpy(&x, &bits, sizeof x);
    } else if (magnitude < 0x400U) {  // zero and subnormal numbers: units of 2^-24
      x = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      if (sign != 0) x = -x;
    } else {
      const uint32_t bits = sign | ((magnitude + 0x1c000U) << 13);
      std::memcpy(&x, &bits, sizeof x);
    }
    return {x};
  }
  // The first `count` elements, zero beyond; here count is 1.
  template <class T>
  static Vec load(const T* p, int /*count*/) {
    return load(p);
  }

  void store(float* p) const { *p = value; }
  void store(BFloat16* p) const {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) {
      p->bits = static_cast<uint16_t>((bits >> 16) | 0x40U);
    } else {
      p->bits = static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
    }
  }
  void store(Float16* p) const {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    uint32_t half;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U;
    } else if (magnitude >= 0x477ff000U) {  // rounds to 65536 or more
      half = 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds to units of 2^-24
      float x;
      std::memcpy(&x, &magnitude, sizeof x);
      x += 0.5f;
      std::memcpy(&half, &x, sizeof half);
      half -= 0x3f000000U;
    } else {
      half = (magnitude + 0xc8000fffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    p->bits = static_cast<uint16_t>(sign | half);
  }
  template <class T>
  void store(T* p, int /*count*/) const {
    store(p);
  }

  float sum() const { return value; }
  float max_element() const { return value; }
};

inline Vec operator+(Vec a, Vec b) { return {a.value + b.value}; }
inline Vec operator-(Vec a, Vec b) { return {a.value - b.value}; }
inline Vec operator*(Vec a, Vec b) { return {a.value * b.value}; }
inline Vec operator/(Vec a, Vec b) { return {a.value / b.value}; }
// a * b + c
inline Vec fma(Vec a, Vec b, Vec c) { return {a.value * b.value + c.value}; }
// The second operand when one is NaN, as the x86 instructions do.
inline Vec min(Vec a, Vec b) { return {a.value < b.value ? a.value : b.value}; }
inline Vec max(Vec a, Vec b) { return {a.value > b.value ? a.value : b.value}; }
inline Vec abs(Vec a) { return {std::fabs(a.value)}; }
// To the nearest whole number, for magnitudes below 2^22: beyond 1.5 * 2^23 float32 has no
// fractions.
inline Vec round(Vec a) { return {(a.value + 12582912.0f) - 12582912.0f}; }
// The sign of `sign` on the magnitude of `a`.
inline Vec copysign(Vec a, Vec sign) { return {std::copysign(a.value, sign.value)}; }
// a * 2^n for whole n in [-150, 128]: in two factors, so that each power is a normal number.
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  const float shifted = n.value + 12582912.0f;  // its low bits are n
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const uint32_t whole = bits - 0x4b400000U;
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(whole) >> 1);
  const auto power = [](uint32_t e) {
    const uint32_t exponent = (e + 127U) << 23;
    float x;
    std::memcpy(&x, &exponent, sizeof x);
    return x;
  };
  return {a.value * power(half) * power(whole - half)};
}

}  // namespace rtp_llm::cpu::scalar
