// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/gguf/panel.h"

#include <cstring>

namespace rtp_llm::cpu {
namespace {

constexpr int kRows = kGgufPanelRows;

struct Layout {
  int numbers, scales, group;  // bytes of all rows
  int nibbles, bits, pairs;    // where they are in the codes of a group; -1: none
};

constexpr Layout layout_of(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
      return {32, 0, 256, 0, -1, -1};
    case GgufType::kQ5_0:
      return {32, 0, 320, 64, 0, -1};
    case GgufType::kQ4K:
      return {64, 192, 256, 0, -1, -1};
    case GgufType::kQ5K:
      return {64, 192, 320, 64, 0, -1};
    case GgufType::kQ6K:
      return {32, 256, 384, 0, -1, 256};
    default:  // Q8_0
      return {32, 0, 512, -1, -1, -1};
  }
}

// Where a block of all rows is.
template <class Byte>
struct Place {
  Byte *numbers, *scales, *codes;
};

template <class Byte>
Place<Byte> place(GgufType type, Byte* panel, int64_t columns, int64_t index) {
  const Layout layout = layout_of(type);
  const int64_t units = columns / info_of(type).columns;
  const int64_t codes = info_of(type).columns / kGgufGroup * layout.group;
  const GgufPlace at = gguf_place(layout.numbers, layout.scales + codes, units, index);
  return {panel + at.numbers, panel + at.rest, panel + at.rest + layout.scales};
}

// The 4 bytes of a row in 64.
uint32_t read_row(const uint8_t* step, int row) {
  uint32_t word;
  std::memcpy(&word, step + 4 * row, sizeof word);
  return word;
}

void add_row(uint8_t* step, int row, uint32_t bits) {
  bits |= read_row(step, row);
  std::memcpy(step + 4 * row, &bits, sizeof bits);
}

constexpr uint32_t each(uint32_t mask) { return mask * 0x01010101U; }

void write_codes(const Layout& layout, const uint8_t* codes, int row, uint8_t* group) {
  for (int s = 0; s < kGgufSteps; ++s) {
    const uint32_t word = read_row(codes + 4 * s, 0);
    if (layout.nibbles < 0) {
      add_row(group + kGgufStepBytes * s, row, word);
      continue;
    }
    const uint32_t low = word & each(15), high = word >> 4;
    add_row(group + layout.nibbles + kGgufStepBytes * (s / 2), row, low << (4 * (s % 2)));
    if (layout.bits >= 0) add_row(group + layout.bits, row, (high & each(1)) << s);
    if (layout.pairs >= 0) {
      add_row(group + layout.pairs + kGgufStepBytes * (s / 4), row,
              (high & each(3)) << (2 * (s % 4)));
    }
  }
}

void read_codes(const Layout& layout, const uint8_t* group, int row, uint8_t* codes) {
  for (int s = 0; s < kGgufSteps; ++s) {
    uint32_t word;
    if (layout.nibbles < 0) {
      word = read_row(group + kGgufStepBytes * s, row);
    } else {
      const uint32_t nibbles = read_row(group + layout.nibbles + kGgufStepBytes * (s / 2), row);
      word = nibbles >> (4 * (s % 2)) & each(15);
    }
    if (layout.bits >= 0) word |= (read_row(group + layout.bits, row) >> s & each(1)) << 4;
    if (layout.pairs >= 0) {
      const uint32_t pairs = read_row(group + layout.pairs + kGgufStepBytes * (s / 4), row);
      word |= (pairs >> (2 * (s % 4)) & each(3)) << 4;
    }
    std::memcpy(codes + 4 * s, &word, sizeof word);
  }
}

// Number `index` of 256 of six bits; `bits` are added to zeros.
void write_six_bits(uint8_t* parts, int index, uint8_t bits) {
  const int at = index % 64;
  if (index < 192) {
    parts[index] = static_cast<uint8_t>(parts[index] | bits);
    return;
  }
  for (int part = 0; part < 3; ++part) {
    uint8_t& byte = parts[64 * part + at];
    byte = static_cast<uint8_t>(byte | (bits >> (2 * part) & 3) << 6);
  }
}

uint8_t read_six_bits(const uint8_t* parts, int index) {
  const int at = index % 64;
  if (index < 192) return parts[index] & 63;
  return static_cast<uint8_t>(parts[at] >> 6 | parts[64 + at] >> 6 << 2 |
                              parts[128 + at] >> 6 << 4);
}

bool has_mins(GgufType type) { return type == GgufType::kQ4K || type == GgufType::kQ5K; }

void write_scales(GgufType type, const GgufUnit& unit, int row, const Place<uint8_t>& to) {
  std::memcpy(to.numbers + 2 * row, &unit.scale, 2);
  if (has_mins(type)) {
    std::memcpy(to.numbers + 2 * kRows + 2 * row, &unit.min, 2);
    for (int g = 0; g < 8; ++g) {
      write_six_bits(to.scales, g * kRows + row, unit.scales[g]);
      write_six_bits(to.scales, 128 + g * kRows + row, unit.mins[g]);
    }
  } else if (type == GgufType::kQ6K) {
    for (int g = 0; g < 16; ++g) to.scales[g * kRows + row] = unit.scales[g];
  }
}

void read_scales(GgufType type, const Place<const uint8_t>& from, int row, GgufUnit* unit) {
  std::memcpy(&unit->scale, from.numbers + 2 * row, 2);
  if (has_mins(type)) {
    std::memcpy(&unit->min, from.numbers + 2 * kRows + 2 * row, 2);
    for (int g = 0; g < 8; ++g) {
      unit->scales[g] = read_six_bits(from.scales, g * kRows + row);
      unit->mins[g] = read_six_bits(from.scales, 128 + g * kRows + row);
    }
  } else if (type == GgufType::kQ6K) {
    for (int g = 0; g < 16; ++g) unit->scales[g] = from.scales[g * kRows + row];
  }
}

}  // namespace

void write_panel(GgufType type, const uint8_t* blocks, int rows, int64_t columns, uint8_t* panel) {
  const GgufTypeInfo& info = info_of(type);
  const Layout layout = layout_of(type);
  const int64_t row_bytes = gguf_row_bytes(type, columns);
  std::memset(panel, 0, static_cast<size_t>(row_bytes * kRows));
  GgufUnit unit = {};
  for (int row = 0; row < rows; ++row) {
    for (int64_t index = 0; index < columns / info.columns; ++index) {
      read_unit(type, blocks + row * row_bytes + index * info.bytes, &unit);
      const Place<uint8_t> to = place(type, panel, columns, index);
      write_scales(type, unit, row, to);
      for (int g = 0; g < info.columns / kGgufGroup; ++g) {
        write_codes(layout, unit.codes + kGgufGroup * g, row, to.codes + layout.group * g);
      }
    }
  }
}

void read_panel_unit(GgufType type, const uint8_t* panel, int row, int64_t columns, int64_t index,
                     GgufUnit* unit) {
  const Layout layout = layout_of(type);
  const Place<const uint8_t> from = place(type, panel, columns, index);
  read_scales(type, from, row, unit);
  for (int g = 0; g < info_of(type).columns / kGgufGroup; ++g) {
    read_codes(layout, from.codes + layout.group * g, row, unit->codes + kGgufGroup * g);
  }
}

}  // namespace rtp_llm::cpu
