// SPDX-License-Identifier: Apache-2.0
// Arguments of products of sorted rows with weights in MXFP4: 32 numbers of e2m1 in 16 bytes, the
// even one of a pair in the low four bits, and a biased exponent for each 32. And with others that
// have tables and scales of their own, such as NVFP4 and nf4.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

constexpr int64_t kMxfp4Block = 32;

// out[r] = x[r] weight[e]^T + bias[e] for offsets[e] <= r < offsets[e + 1].
struct Mxfp4GroupedLinearArgs {
  const void* x;           // [rows, k], contiguous
  const uint8_t* blocks;   // [experts, n, k / 2], contiguous
  const uint8_t* scales;   // [experts, n, k / 32], contiguous
  const int32_t* offsets;  // [experts + 1]
  const void* bias;        // [experts, n], contiguous, or null
  void* out;               // [rows, n], contiguous
  int64_t rows, n, k;
  int experts;
  DType dtype;  // of x, bias and out

  constexpr int64_t row_bytes() const { return k / 2; }
  constexpr int64_t row_scales() const { return k / kMxfp4Block; }
};

// The same with codes that index `table`. Each `group` columns of a weight row have a scale: of
// `float_scales` [experts, n, k / group], or, if that is null, of `scales` as numbers of e4m3
// [experts, n, k / 16] times row_scales_of [experts, n].
struct Table4GroupedLinearArgs : Mxfp4GroupedLinearArgs {
  const float* table;  // 16 numbers
  const float* float_scales;
  const float* row_scales_of;
  int64_t group;
};

}  // namespace rtp_llm
