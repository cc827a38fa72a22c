// SPDX-License-Identifier: Apache-2.0
// Arguments of operators on weights in the blocks of GGUF files, and the types of blocks.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

enum class GgufType : int8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4
};

struct GgufTypeInfo {
  const char* name;
  int columns, bytes;  // of a block
  bool interleaved;    // 16 rows at a time: see kernels/cpu/gguf/panel.h
};

// By GgufType.
constexpr GgufTypeInfo kGgufTypes[] = {
    {"Q4_0", 32, 18, true},    {"Q4_1", 32, 20, false},   {"Q5_0", 32, 22, true},
    {"Q5_1", 32, 24, false},   {"Q8_0", 32, 34, true},    {"Q2_K", 256, 84, false},
    {"Q3_K", 256, 110, false}, {"Q4_K", 256, 144, true},  {"Q5_K", 256, 176, true},
    {"Q6_K", 256, 210, true},  {"IQ4_NL", 32, 18, false}, {"IQ4_XS", 256, 136, false},
    {"MXFP4", 32, 17, false},
};
constexpr int kGgufTypeCount = sizeof(kGgufTypes) / sizeof(kGgufTypes[0]);
constexpr int kGgufPanelRows = 16;  // that are interleaved

constexpr const GgufTypeInfo& info_of(GgufType type) { return kGgufTypes[static_cast<int>(type)]; }
constexpr int64_t gguf_row_bytes(GgufType type, int64_t columns) {
  return columns / info_of(type).columns * info_of(type).bytes;
}

// out = x weight^T + bias.
struct GgufLinearArgs {
  const void* x;          // [m, k], rows x_stride apart
  const uint8_t* blocks;  // [n, row_bytes], contiguous
  const void* bias;       // [n] or null
  void* out;              // [m, n], contiguous
  int64_t m, n, k, x_stride;
  GgufType type;
  int activation_bits;  // 8, 16 or 32: as they are
  DType dtype;          // of x and bias
  DType out_dtype;      // that, or float32

  constexpr int64_t row_bytes() const { return gguf_row_bytes(type, k); }
  constexpr int64_t panel_bytes() const { return row_bytes() * kGgufPanelRows; }
};

// Rows [offsets[e], offsets[e + 1]) of x by the weight of expert e.
struct GgufGroupedLinearArgs {
  GgufLinearArgs linear;   // all rows of x, the weight and the bias of the first expert
  const int32_t* offsets;  // [experts + 1]
  int64_t experts;
  int64_t blocks_stride, bias_stride;  // from an expert to the next: bytes, numbers

  GgufLinearArgs of_expert(int64_t expert) const {
    GgufLinearArgs args = linear;
    const int64_t first = offsets[expert];
    args.m = offsets[expert + 1] - first;
    args.x = advanced(linear.x, first * linear.x_stride * element_size(linear.dtype));
    args.out = static_cast<char*>(linear.out) + first * linear.n * element_size(linear.out_dtype);
    args.blocks += expert * blocks_stride;
    if (linear.bias != nullptr) {
      args.bias = advanced(linear.bias, expert * bias_stride * element_size(linear.dtype));
    }
    return args;
  }

 private:
  static const void* advanced(const void* data, int64_t bytes) {
    return static_cast<const char*>(data) + bytes;
  }
};

// Interleaves the rows of whole panels in place; those after the last panel stay as they are.
struct GgufInterleaveArgs {
  uint8_t* blocks;  // [rows, row_bytes], contiguous
  int64_t rows, columns;
  GgufType type;
};

// out[i] = the floats of row ids[i].
struct GgufEmbeddingArgs {
  const int32_t* ids;
  const uint8_t* blocks;  // [rows, row_bytes], contiguous
  void* out;              // [count, columns], contiguous
  int64_t count, rows, columns;
  GgufType type;
  DType dtype;  // of out
};

}  // namespace rtp_llm
