// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gguf/unit.h"

#include <cstring>

#include "rtp_llm/kernels/common/gguf/gguf_group.h"
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

// The scales of each group of a block of 256 columns, and its float16 numbers.
void read_scales(GgufType type, const uint8_t* block, GgufUnit* unit) {
  switch (type) {
    case GgufType::kQ2K:
      for (int i = 0; i < 16; ++i) {
        unit->scales[i] = block[i] & 15;
        unit->mins[i] = static_cast<uint8_t>(block[i] >> 4);
      }
      unit->scale = read16(block + 80);
      unit->min = read16(block + 82);
      return;
    case GgufType::kQ3K:
      for (int i = 0; i < 16; ++i) {
        unit->scales[i] = static_cast<uint8_t>(gguf::q3k_scale(block + 96, i));
      }
      unit->scale = read16(block + 108);
      return;
    case GgufType::kQ4K:
    case GgufType::kQ5K:
      for (int i = 0; i < 8; ++i) {
        const gguf::SixBits bits = gguf::six_bits(block + 4, i);
        unit->scales[i] = static_cast<uint8_t>(bits.scale);
        unit->mins[i] = static_cast<uint8_t>(bits.min);
      }
      unit->scale = read16(block);
      unit->min = read16(block + 2);
      return;
    case GgufType::kQ6K:
      std::memcpy(unit->scales, block + 192, 16);
      unit->scale = read16(block + 208);
      return;
    default:  // IQ4_XS
      for (int i = 0; i < 8; ++i) {
        unit->scales[i] = static_cast<uint8_t>(gguf::iq4xs_scale(block, i));
      }
      unit->scale = read16(block);
  }
}

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
  const GgufCodes codes = gguf_codes_of(type);
  const int groups = info_of(type).columns / kGgufGroupColumns;
  for (int group = 0; group < groups; ++group) {
    for (int word = 0; word < kGgufGroupColumns / 4; ++word) {
      const uint32_t four = read_gguf_codes(codes, block, group, word);
      std::memcpy(unit->codes + group * kGgufGroupColumns + 4 * word, &four, sizeof four);
    }
  }
  if (groups > 1) return read_scales(type, block, unit);
  unit->scale = type == GgufType::kMxfp4 ? block[0] : read16(block);
  unit->min = read16(block + 2);
}

void unit_floats(GgufType type, const GgufUnit& unit, float* weights) {
  const float scale = type == GgufType::kMxfp4 ? gguf_half_e8m0(static_cast<uint8_t>(unit.scale))
                                               : float_of(unit.scale);
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
      return put_of_table(unit, 0, scale, kGgufIq4, weights);
    case GgufType::kIq4Xs:
      for (int i = 0; i < 8; ++i) {
        put_of_table(unit, 32 * i, scale * static_cast<float>(unit.scales[i] - 32), kGgufIq4,
                     weights);
      }
      return;
    case GgufType::kMxfp4:
      return put_of_table(unit, 0, scale, kGgufE2m1, weights);
  }
}

}  // namespace rtp_llm::cpu
