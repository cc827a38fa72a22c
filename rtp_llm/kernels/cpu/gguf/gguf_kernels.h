// SPDX-License-Identifier: Apache-2.0
// What gguf_linear.cc calls of one instruction set.
#pragma once

#include "rtp_llm/kernels/common/gguf/gguf_linear.h"
#include "rtp_llm/kernels/cpu/gguf/panel.h"

namespace rtp_llm::cpu {

// Words of 32 bits that 32 columns of a row of x become. Quantised: 8 of 4 columns each; what the
// sum of products of either half starts with, since codes of weights are too large; the scale; and
// the scale times the sum of the numbers.
constexpr int kGgufQuantizedWords = kGgufSteps + 4;
constexpr int kGgufFloatWords = kGgufGroup;

// Rows that a row of x becomes: in 16 bits itself in 8, and what quantising leaves of it likewise.
constexpr int gguf_rows_each(const GgufLinearArgs& args) {
  return args.activation_bits == 16 ? 2 : 1;
}

// Some rows of x in the form of the kernels, in tiles of nearly equal height: for each group its
// words, each of all rows of the tile.
struct GgufRows {
  void* words;  // aligned to 64 bytes
  int64_t first;
  int rows, tiles;  // rows of x

  int tile_begin(int tile) const { return static_cast<int>(int64_t{rows} * tile / tiles); }
  // Rows that a tile's become.
  int tile_rows(const GgufLinearArgs& args, int tile) const {
    return (tile_begin(tile + 1) - tile_begin(tile)) * gguf_rows_each(args);
  }
  // Words of one kind before a tile.
  int64_t words_begin(const GgufLinearArgs& args, int tile) const {
    return args.k / kGgufGroup * tile_begin(tile) * gguf_rows_each(args);
  }
};

struct GgufKernels {
  // All of rows that those of x become.
  int few_rows;  // at most: their weights are decoded in registers
  int few_tile_rows;
  int many_tile_rows;
  int float_tile_rows;
  void (*quantize)(const GgufLinearArgs&, const GgufRows&, int tile);
  void (*pack_floats)(const GgufLinearArgs&, const GgufRows&, int tile);
  // All rows of x by the panels [first, last); `last_panel` is the last one where it has fewer than
  // 16 rows, filled up.
  void (*multiply_few)(const GgufLinearArgs&, const GgufRows&, const uint8_t* last_panel,
                       int64_t first, int64_t last);
  void (*multiply_floats)(const GgufLinearArgs&, const GgufRows&, const uint8_t* last_panel,
                          int64_t first, int64_t last);
  // The same for many rows; `scratch` has room for gguf_decoded_bytes().
  void (*multiply_many)(const GgufLinearArgs&, const GgufRows&, const uint8_t* last_panel,
                        int64_t first, int64_t last, void* scratch);
};

constexpr int kGgufDecodedPanels = 2;  // at once

// Of panels decoded for many rows: a byte for each weight, and three floats for 32.
constexpr int64_t gguf_decoded_bytes(int64_t columns) {
  return kGgufDecodedPanels * kGgufPanelRows * (columns + columns / kGgufGroup * 12);
}

namespace scalar {
extern const GgufKernels kGgufKernels;
}
namespace avx2 {
extern const GgufKernels kGgufKernels;
}
namespace avx512 {
extern const GgufKernels kGgufKernels;
}
namespace avx512_vnni {
extern const GgufKernels kGgufKernels;
}

}  // namespace rtp_llm::cpu
