// SPDX-License-Identifier: Apache-2.0
// Many rows of x: panels are decoded once and meet all tiles. Included by gguf_tile.h.
#pragma once

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// A panel as its codes, one to a byte, and floats: the scales of each group, then 16 mins for
// each.
template <class Format>
struct DecodedPanel {
  static constexpr int kGroups = Format::kColumns / kGgufGroup;
  static constexpr int kHalves = kGgufSteps / Format::kScaleSteps;
  static constexpr int kRest = Format::kSmallScales + kGroups * Format::kCodes;
  uint8_t* codes;
  float *scale, *min;

  DecodedPanel(void* scratch, int64_t columns, int index) {
    const int64_t groups = columns / kGgufGroup;
    codes =
        static_cast<uint8_t*>(scratch) + index * gguf_decoded_bytes(columns) / kGgufDecodedPanels;
    scale = reinterpret_cast<float*>(codes + columns * kGgufPanelRows);
    min = scale + groups * 2 * kGgufPanelRows;
  }

  void decode(const uint8_t* panel, int64_t columns) const {
    const int64_t units = columns / Format::kColumns;
    for (int64_t u = 0; u < units; ++u) {
      const GgufPlace at = gguf_place(Format::kNumbers, kRest, units, u);
      typename Format::Scales scales;
      scales.read(panel + at.numbers, panel + at.rest);
      for (int group = 0; group < kGroups; ++group) {
        const int64_t g = u * kGroups + group;
        decode_scales(scales, group, g);
        const uint8_t* const from = panel + at.rest + Format::kSmallScales + group * Format::kCodes;
        uint8_t* const to = codes + g * kGgufSteps * kGgufStepBytes;
#pragma GCC unroll 8
        for (int s = 0; s < kGgufSteps; ++s) {
#pragma GCC unroll 2
          for (int p = 0; p < kParts; ++p) {
            store_bytes(Format::step(from, s, p), to + s * kGgufStepBytes + p * kPartBytes);
          }
        }
      }
    }
  }

 private:
  // Of a group of a block, which is group `to` of the row.
  RTP_LLM_ALWAYS_INLINE void decode_scales(const typename Format::Scales& scales, int group,
                                           int64_t to) const {
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
      const int at = p * kWidth;
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
        scales.scale(group, half, p).store(scale + (to * kHalves + half) * kGgufPanelRows + at);
      }
      if constexpr (Format::kMins) {
        scales.min(group, p).store(min + to * kGgufPanelRows + at);
      }
    }
  }
};

template <class Format, int kRows, int kPanels>
void multiply_decoded(const int32_t* x, const DecodedPanel<Format>* panels, int64_t columns,
                      float* sums) {
  Vec sum[kRows][kPanels * kParts];
  clear(sum);
  Group<Decoded<Format>, kPanels> group;
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    group.codes[p] = panels[p].codes;
    group.scales[p] = {panels[p].scale, panels[p].min};
  }
  const int64_t groups = columns / kGgufGroup;
  for (group.index = 0; group.index < groups; ++group.index, x += kGgufQuantizedWords * kRows) {
    add_group<Decoded<Format>>(x, group, sum);
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) group.codes[p] += kGgufSteps * kGgufStepBytes;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanels * kParts; ++v) {
      sum[i][v].store(sums + i * kPanels * kGgufPanelRows + v * kWidth);
    }
  }
}

template <class Format, int kPanels, int kRows = kManyRows>
void multiply_decoded_any(int rows, const int32_t* x, const DecodedPanel<Format>* panels,
                          int64_t columns, float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_decoded<Format, kRows, kPanels>(x, panels, columns, sums);
    multiply_decoded_any<Format, kPanels, kRows - 1>(rows, x, panels, columns, sums);
  }
}

template <class Format, int kPanels>
void multiply_decoded_tiles(const GgufLinearArgs& args, const GgufRows& x, int64_t panel,
                            const DecodedPanel<Format>* panels) {
  alignas(64) float sums[kManyRows * kPanels * kGgufPanelRows];
  const auto* const words = static_cast<const int32_t*>(x.words);
  for (int tile = 0; tile < x.tiles; ++tile) {
    const int rows = x.tile_rows(args, tile);
    multiply_decoded_any<Format, kPanels>(
        rows, words + x.words_begin(args, tile) * kGgufQuantizedWords, panels, args.k, sums);
    store(args, x.first + x.tile_begin(tile), rows, panel, kPanels, sums);
  }
}

void multiply_many(const GgufLinearArgs& args, const GgufRows& x, const uint8_t* last_panel,
                   int64_t first, int64_t last, void* scratch) {
  visit_format(args.type, [&](auto format) {
    using Panel = DecodedPanel<decltype(format)>;
    constexpr int kPanels = many_panels(kManyRows);
    const Panel panels[kGgufDecodedPanels] = {Panel(scratch, args.k, 0), Panel(scratch, args.k, 1)};
    for (int64_t panel = first; panel < last; panel += kPanels) {
      const int count = static_cast<int>(last - panel < kPanels ? last - panel : kPanels);
      for (int p = 0; p < count; ++p) {
        panels[p].decode(panel_at(args, last_panel, panel + p), args.k);
      }
      if (count == kPanels) {
        multiply_decoded_tiles<decltype(format), kPanels>(args, x, panel, panels);
      } else {
        multiply_decoded_tiles<decltype(format), 1>(args, x, panel, panels);
      }
    }
  });
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
