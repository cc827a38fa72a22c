// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gguf/unit.h"

#include <cmath>
#include <cstring>

#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu {
namespace {

uint16_t read16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float float_of(uint16_t bits) {
  const Float16 number = {bits};
  return scalar::Vec::load(&number).value;
}

// The low nibbles of `bytes` bytes, then the high ones.
void read_nibbles(const uint8_t* packed, int bytes, uint8_t* codes) {
  for (int i = 0; i < bytes; ++i) {
    codes[i] = packed[i] & 15;
    codes[bytes + i] = static_cast<uint8_t>(packed[i] >> 4);
  }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | (bits[i / 8] >> (i % 8) & 1) << 4);
  }
}

// Eight 6-bit scales and eight 6-bit mins in 12 bytes.
void read_six_bit_scales(const uint8_t* packed, GgufUnit* unit) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t first = packed[i], second = packed[4 + i], third = packed[8 + i];
    unit->scales[i] = first & 63;
    unit->mins[i] = second & 63;
    unit->scales[4 + i] = static_cast<uint8_t>((third & 15) | first >> 6 << 4);
    unit->mins[4 + i] = static_cast<uint8_t>(third >> 4 | second >> 6 << 4);
  }
}

// 64 columns in 32 bytes, four times.
void read_nibbles_of_k(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) read_nibbles(packed + 32 * i, 32, codes + 64 * i);
}

// Two bits of each of 128 columns in 32 bytes, twice; added to the codes from bit `to` on.
void add_pairs_of_bits(const uint8_t* packed, int to, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int part = 0; part < 4; ++part) {
      uint8_t* const from = codes + 128 * half + 32 * part;
      for (int i = 0; i < 32; ++i) {
        from[i] = static_cast<uint8_t>(from[i] | (packed[32 * half + i] >> (2 * part) & 3) << to);
      }
    }
  }
}

// Bit j of byte i belongs to column i of the j-th 32.
void add_bits_of_k(const uint8_t* packed, int to, uint8_t* codes) {
  for (int chunk = 0; chunk < 8; ++chunk) {
    for (int i = 0; i < 32; ++i) {
      uint8_t& code = codes[32 * chunk + i];
      code = static_cast<uint8_t>(code | (packed[i] >> chunk & 1) << to);
    }
  }
}

void read_q2k(const uint8_t* block, GgufUnit* unit) {
  for (int i = 0; i < 16; ++i) {
    unit->scales[i] = block[i] & 15;
    unit->mins[i] = static_cast<uint8_t>(block[i] >> 4);
  }
  std::memset(unit->codes, 0, sizeof unit->codes);
  add_pairs_of_bits(block + 16, 0, unit->codes);
  unit->scale = read16(block + 80);
  unit->min = read16(block + 82);
}

void read_q3k(const uint8_t* block, GgufUnit* unit) {
  std::memset(unit->codes, 0, sizeof unit->codes);
  add_pairs_of_bits(block + 32, 0, unit->codes);
  add_bits_of_k(block, 2, unit->codes);
  const uint8_t* const packed = block + 96;
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    unit->scales[i] = static_cast<uint8_t>(low | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4);
  }
  unit->scale = read16(block + 108);
}

void read_q45k(const uint8_t* block, bool fifth, GgufUnit* unit) {
  unit->scale = read16(block);
  unit->min = read16(block + 2);
  read_six_bit_scales(block + 4, unit);
  read_nibbles_of_k(block + (fifth ? 48 : 16), unit->codes);
  if (fifth) add_bits_of_k(block + 16, 4, unit->codes);
}

void read_q6k(const uint8_t* block, GgufUnit* unit) {
  for (int half = 0; half < 2; ++half) {
    read_nibbles(block + 64 * half, 64, unit->codes + 128 * half);
  }
  add_pairs_of_bits(block + 128, 4, unit->codes);
  std::memcpy(unit->scales, block + 192, 16);
  unit->scale = read16(block + 208);
}

void read_iq4xs(const uint8_t* block, GgufUnit* unit) {
  unit->scale = read16(block);
  const uint16_t high = read16(block + 2);
  for (int i = 0; i < 8; ++i) {
    const int low = block[4 + i / 2] >> (4 * (i % 2)) & 15;
    unit->scales[i] = static_cast<uint8_t>(low | (high >> (2 * i) & 3) << 4);
  }
  for (int i = 0; i < 8; ++i) read_nibbles(block + 8 + 16 * i, 16, unit->codes + 32 * i);
}

// The numbers that the codes of IQ4_NL and IQ4_XS stand for, and twice those of MXFP4.
constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// scale * (code - offset) - min for columns [first, first + count).
void put(const GgufUnit& unit, int first, int count, float scale, int offset, float min,
         float* weights) {
  for (int i = first; i < first + count; ++i) {
    weights[i] = scale * static_cast<float>(unit.codes[i] - offset) - min;
  }
}

// 256 columns in groups of 16, scale_at(i) being that of a group.
template <class ScaleAt>
void put_groups(const GgufUnit& unit, float scale, ScaleAt scale_at, int offset, float* weights) {
  for (int i = 0; i < 16; ++i) {
    put(unit, 16 * i, 16, scale * static_cast<float>(scale_at(i)), offset, 0.0f, weights);
  }
}

// 256 columns in groups of `columns`, each with a scale and a min.
void put_with_mins(const GgufUnit& unit, int columns, float scale, float* weights) {
  const float min = float_of(unit.min);
  for (int i = 0; i < 256 / columns; ++i) {
    put(unit, columns * i, columns, scale * unit.scales[i], 0, min * unit.mins[i], weights);
  }
}

void put_of_table(const GgufUnit& unit, int first, float scale, const int8_t* table,
                  float* weights) {
  for (int i = first; i < first + 32; ++i) {
    weights[i] = scale * static_cast<float>(table[unit.codes[i]]);
  }
}

}  // namespace

void read_unit(GgufType type, const uint8_t* block, GgufUnit* unit) {
  switch (type) {
    case GgufType::kQ4_0:
    case GgufType::kIq4Nl:
      unit->scale = read16(block);
      return read_nibbles(block + 2, 16, unit->codes);
    case GgufType::kQ4_1:
      unit->scale = read16(block);
      unit->min = read16(block + 2);
      return read_nibbles(block + 4, 16, unit->codes);
    case GgufType::kQ5_0:
      unit->scale = read16(block);
      read_nibbles(block + 6, 16, unit->codes);
      return add_fifth_bits(block + 2, unit->codes);
    case GgufType::kQ5_1:
      unit->scale = read16(block);
      unit->min = read16(block + 2);
      read_nibbles(block + 8, 16, unit->codes);
      return add_fifth_bits(block + 4, unit->codes);
    case GgufType::kQ8_0:
      unit->scale = read16(block);
      for (int i = 0; i < 32; ++i) unit->codes[i] = block[2 + i] ^ 0x80;
      return;
    case GgufType::kQ2K:
      return read_q2k(block, unit);
    case GgufType::kQ3K:
      return read_q3k(block, unit);
    case GgufType::kQ4K:
      return read_q45k(block, false, unit);
    case GgufType::kQ5K:
      return read_q45k(block, true, unit);
    case GgufType::kQ6K:
      return read_q6k(block, unit);
    case GgufType::kIq4Xs:
      return read_iq4xs(block, unit);
    case GgufType::kMxfp4:
      unit->scale = block[0];
      return read_nibbles(block + 1, 16, unit->codes);
  }
}

void unit_floats(GgufType type, const GgufUnit& unit, float* weights) {
  const float scale =
      type == GgufType::kMxfp4 ? std::ldexp(1.0f, unit.scale - 128) : float_of(unit.scale);
  switch (type) {
    case GgufType::kQ4_0:
      return put(unit, 0, 32, scale, 8, 0.0f, weights);
    case GgufType::kQ4_1:
    case GgufType::kQ5_1:
      return put(unit, 0, 32, scale, 0, -float_of(unit.min), weights);
    case GgufType::kQ5_0:
      return put(unit, 0, 32, scale, 16, 0.0f, weights);
    case GgufType::kQ8_0:
      return put(unit, 0, 32, scale, 128, 0.0f, weights);
    case GgufType::kQ2K:
      return put_with_mins(unit, 16, scale, weights);
    case GgufType::kQ3K:
      return put_groups(unit, scale, [&](int i) { return unit.scales[i] - 32; }, 4, weights);
    case GgufType::kQ4K:
    case GgufType::kQ5K:
      return put_with_mins(unit, 32, scale, weights);
    case GgufType::kQ6K:
      return put_groups(
          unit, scale, [&](int i) { return static_cast<int8_t>(unit.scales[i]); }, 32, weights);
    case GgufType::kIq4Nl:
      return put_of_table(unit, 0, scale, kIq4, weights);
    case GgufType::kIq4Xs:
      for (int i = 0; i < 8; ++i) {
        put_of_table(unit, 32 * i, scale * static_cast<float>(unit.scales[i] - 32), kIq4, weights);
      }
      return;
    case GgufType::kMxfp4:
      return put_of_table(unit, 0, scale, kE2m1, weights);
  }
}

}  // namespace rtp_llm::cpu
