// SPDX-License-Identifier: Apache-2.0
// float32 to 8-bit floats with 4 bits of exponent and 3 of mantissa: to nearest, ties to even,
// saturating. e4m3fn has no infinity and reaches 448; e4m3fnuz (AMD before gfx950) has no negative
// zero and reaches 240. And the way back from e4m3fn.
#pragma once

#include <cstdint>

namespace rtp_llm {

// From the bits of a float32.
constexpr uint8_t float8_e4m3(uint32_t bits, bool fnuz) {
  const uint32_t sign = (bits >> 24) & 0x80U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint8_t>(fnuz ? 0x80U : sign | 0x7fU);
  const uint32_t largest = fnuz ? 0x43700000U : 0x43e00000U;  // 240, 448
  if (magnitude >= largest) return static_cast<uint8_t>(sign | (fnuz ? 0x7fU : 0x7eU));
  const uint32_t least_exponent = fnuz ? 120U : 121U;  // of a normal number, biased by 127
  const uint32_t exponent = magnitude >> 23;
  // Mantissa bits that are dropped: more of them for subnormal numbers.
  const uint32_t dropped = 20U + (exponent < least_exponent ? least_exponent - exponent : 0U);
  if (dropped > 24U) return static_cast<uint8_t>(fnuz ? 0U : sign);
  const uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  const uint32_t half = 1U << (dropped - 1U);
  const uint32_t rest = mantissa & ((1U << dropped) - 1U);
  uint32_t code = mantissa >> dropped;
  code += rest > half || (rest == half && (code & 1U) != 0U) ? 1U : 0U;
  if (exponent >= least_exponent) code += (exponent - least_exponent) << 3U;
  if (fnuz && code == 0U) return 0;
  return static_cast<uint8_t>(sign | code);
}

// The float32 that a number of e4m3fn is.
constexpr float from_float8_e4m3fn(uint8_t code) {
  const uint32_t exponent = (code >> 3U) & 15U, mantissa = code & 7U;
  if (exponent == 15U && mantissa == 7U) return __builtin_nanf("");
  const float magnitude =
      exponent == 0U ? static_cast<float>(mantissa) * 0x1p-9F
                     : __builtin_bit_cast(float, (exponent + 120U) << 23U | mantissa << 20U);
  return (code & 0x80U) != 0U ? -magnitude : magnitude;
}

}  // namespace rtp_llm
