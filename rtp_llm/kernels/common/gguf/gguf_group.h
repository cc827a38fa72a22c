// SPDX-License-Identifier: Apache-2.0
// Decodes GGUF blocks as they are in files, 32 columns at a time.
//
// A weight is scale * value(code) - min, where scale and min belong to 16 or 32 columns.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/gguf/gguf_linear.h"

namespace rtp_llm {

constexpr int kGgufGroupColumns = 32;
constexpr int kGgufHalfGroup = 16;

// The scale and min of each 16 columns of a group.
struct GgufScales {
  float scale[2], min[2];
};

// Numbers that the codes of IQ4_NL and IQ4_XS stand for, and twice those of MXFP4.
constexpr int8_t kGgufIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kGgufE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The float32 of a float16 at `bytes`.
constexpr float gguf_float16(const uint8_t* bytes) {
  const uint32_t bits = static_cast<uint32_t>(bytes[0] | bytes[1] << 8);
  const uint32_t sign = (bits & 0x8000U) << 16U, exponent = bits >> 10U & 31U;
  const uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0U) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0U ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31U ? 255U : exponent + 112U;
  return __builtin_bit_cast(float, sign | wide << 23U | mantissa << 13U);
}

// 2^(exponent - 128): half of what a biased exponent of e8m0 stands for, as e2m1 is doubled.
constexpr float gguf_half_e8m0(uint8_t exponent) {
  if (exponent < 2) return exponent == 0 ? 0x1p-128F : 0x1p-127F;
  return __builtin_bit_cast(float, static_cast<uint32_t>(exponent - 1) << 23U);
}

namespace gguf {

// The factors of 32 columns of Q4_K and Q5_K, in 6 bits each, from 12 bytes.
struct SixBits {
  int scale, min;
};
constexpr SixBits six_bits(const uint8_t* packed, int group) {
  const uint8_t scale = packed[group % 4], min = packed[4 + group % 4];
  const uint8_t rest = packed[8 + group % 4];
  if (group < 4) return {scale & 63, min & 63};
  return {(rest & 15) | scale >> 6 << 4, rest >> 4 | min >> 6 << 4};
}

// The scale, plus 32, of 16 columns of Q3_K from 12 bytes.
constexpr int q3k_scale(const uint8_t* packed, int i) {
  const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
  return low | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
}

// The scale, plus 32, of 32 columns of IQ4_XS.
constexpr int iq4xs_scale(const uint8_t* block, int group) {
  const int high = block[2] | block[3] << 8;
  return (block[4 + group / 2] >> (4 * (group % 2)) & 15) | (high >> (2 * group) & 3) << 4;
}

}  // namespace gguf

// Where the codes of a group of 32 columns are: low bits, and for some types high bits.
struct GgufPlaces {
  uint8_t low, low_shift, high, high_shift;
};

// Where a type has its codes. Low bits are in 32 bytes, one for each code, or (`nibbles`) in 16:
// the low nibbles, then the high ones. High bits are likewise in 32 bytes, or (`fifth_bits`) in 4.
struct GgufCodes {
  GgufPlaces groups[8];
  int low_mask, high_mask, high_to;
  bool nibbles, fifth_bits;
  int flip;    // a bit of each code that is stored inverted
  int offset;  // what is taken from a code
};

namespace gguf {

// Codes of 4 bits in 16 bytes for each group, from `first` on, and fifth bits at `fifth` (0: none).
constexpr GgufCodes nibble_codes(int first, int fifth, int offset) {
  GgufCodes made = {{}, 15, fifth > 0 ? 1 : 0, 4, true, fifth > 0, 0, offset};
  for (int group = 0; group < 8; ++group) {
    made.groups[group] = {static_cast<uint8_t>(first + 16 * group), 0, static_cast<uint8_t>(fifth),
                          0};
  }
  return made;
}

// Blocks of 256 columns: `low_bits` and `high_bits` of a code, each 32 bytes with several groups,
// from `low` and from `high` on.
constexpr GgufCodes code_bits(int low, int low_bits, int high, int high_bits, int offset) {
  GgufCodes made = {{},    (1 << low_bits) - 1, (1 << high_bits) - 1, low_bits, false, false, 0,
                    offset};
  const int lows = 8 / low_bits, highs = high_bits > 0 ? 8 / high_bits : 1;
  for (int group = 0; group < 8; ++group) {
    const int of_high = high_bits > 0 ? group / highs * 32 : 0;
    made.groups[group] = {static_cast<uint8_t>(low + group / lows * 32),
                          static_cast<uint8_t>(group % lows * low_bits),
                          static_cast<uint8_t>(high + of_high),
                          static_cast<uint8_t>(group % highs * high_bits)};
  }
  return made;
}

// Q6_K: 64 bytes hold the low bits of four groups, those of the first two in low nibbles.
constexpr GgufCodes q6k_codes() {
  GgufCodes made = code_bits(0, 4, 128, 2, 32);
  for (int group = 0; group < 8; ++group) {
    made.groups[group].low = static_cast<uint8_t>(64 * (group / 4) + 32 * (group % 2));
    made.groups[group].low_shift = static_cast<uint8_t>(group % 4 / 2 * 4);
  }
  return made;
}

constexpr GgufCodes q8_codes() {
  GgufCodes made = code_bits(2, 8, 0, 0, 128);
  made.flip = 128;
  return made;
}

}  // namespace gguf

constexpr GgufCodes gguf_codes_of(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
      return gguf::nibble_codes(2, 0, 8);
    case GgufType::kQ4_1:
      return gguf::nibble_codes(4, 0, 0);
    case GgufType::kQ5_0:
      return gguf::nibble_codes(6, 2, 16);
    case GgufType::kQ5_1:
      return gguf::nibble_codes(8, 4, 0);
    case GgufType::kQ8_0:
      return gguf::q8_codes();
    case GgufType::kQ2K:
      return gguf::code_bits(16, 2, 0, 0, 0);
    case GgufType::kQ3K:
      return gguf::code_bits(32, 2, 0, 1, 4);
    case GgufType::kQ4K:
      return gguf::code_bits(16, 4, 0, 0, 0);
    case GgufType::kQ5K:
      return gguf::code_bits(48, 4, 16, 1, 0);
    case GgufType::kQ6K:
      return gguf::q6k_codes();
    case GgufType::kIq4Nl:
      return gguf::nibble_codes(2, 0, 0);
    case GgufType::kIq4Xs:
      return gguf::nibble_codes(8, 0, 0);
    case GgufType::kMxfp4:
      return gguf::nibble_codes(1, 0, 0);
  }
  return {};
}

namespace gguf {

constexpr uint32_t kBytes = 0x01010101U;

// 4 bytes, the first in the low bits.
inline uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  __builtin_memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace gguf

// Codes 4 word to 4 word + 3 of a group of a block, a byte each, the first in the low bits.
inline uint32_t read_gguf_codes(const GgufCodes& of, const uint8_t* block, int group, int word) {
  const GgufPlaces& places = of.groups[group];
  const int in_low = of.nibbles ? word % 4 : word;
  const int shift = places.low_shift + (of.nibbles ? word / 4 * 4 : 0);
  const uint32_t low = gguf::word_at(block + places.low + 4 * in_low) >> shift;
  uint32_t codes = low & (gguf::kBytes * static_cast<uint32_t>(of.low_mask));
  if (of.high_mask != 0) {
    uint32_t high = gguf::word_at(block + places.high + (of.fifth_bits ? 0 : 4 * word));
    // Four bits, each to the lowest of a byte.
    if (of.fifth_bits) high = (high >> (4 * word) & 15U) * 0x00204081U;
    high = high >> places.high_shift & (gguf::kBytes * static_cast<uint32_t>(of.high_mask));
    codes |= high << of.high_to;
  }
  return codes ^ (gguf::kBytes * static_cast<uint32_t>(of.flip));
}

namespace gguf {

// The scales of types whose blocks have 32 columns.
constexpr GgufScales scales_of_block(GgufType type, const uint8_t* block) {
  const float scale = type == GgufType::kMxfp4 ? gguf_half_e8m0(block[0]) : gguf_float16(block);
  GgufScales made = {{scale, scale}, {0.0F, 0.0F}};
  if (type == GgufType::kQ4_1 || type == GgufType::kQ5_1) {
    made.min[0] = made.min[1] = -gguf_float16(block + 2);
  }
  return made;
}

// `scale` times a factor for each 16 columns.
constexpr GgufScales two_scales(float scale, int first, int second) {
  return {{scale * static_cast<float>(first), scale * static_cast<float>(second)}, {0.0F, 0.0F}};
}

}  // namespace gguf

// The scales of the same columns.
constexpr GgufScales read_gguf_scales(GgufType type, const uint8_t* block, int group) {
  switch (type) {
    case GgufType::kQ2K: {
      const int first = block[2 * group], second = block[2 * group + 1];
      const float min = gguf_float16(block + 82);
      GgufScales made = gguf::two_scales(gguf_float16(block + 80), first & 15, second & 15);
      made.min[0] = min * static_cast<float>(first >> 4);
      made.min[1] = min * static_cast<float>(second >> 4);
      return made;
    }
    case GgufType::kQ3K:
      return gguf::two_scales(gguf_float16(block + 108),
                              gguf::q3k_scale(block + 96, 2 * group) - 32,
                              gguf::q3k_scale(block + 96, 2 * group + 1) - 32);
    case GgufType::kQ4K:
    case GgufType::kQ5K: {
      const gguf::SixBits bits = gguf::six_bits(block + 4, group);
      const float scale = gguf_float16(block) * static_cast<float>(bits.scale);
      const float min = gguf_float16(block + 2) * static_cast<float>(bits.min);
      return {{scale, scale}, {min, min}};
    }
    case GgufType::kQ6K:
      return gguf::two_scales(gguf_float16(block + 208),
                              static_cast<int8_t>(block[192 + 2 * group]),
                              static_cast<int8_t>(block[193 + 2 * group]));
    case GgufType::kIq4Xs: {
      const int scale = gguf::iq4xs_scale(block, group) - 32;
      return gguf::two_scales(gguf_float16(block), scale, scale);
    }
    default:
      return gguf::scales_of_block(type, block);
  }
}

// The numbers of codes that index a table; null where they are whole numbers.
constexpr const int8_t* gguf_table(GgufType type) {
  if (type == GgufType::kIq4Nl || type == GgufType::kIq4Xs) return kGgufIq4;
  return type == GgufType::kMxfp4 ? kGgufE2m1 : nullptr;
}

}  // namespace rtp_llm
