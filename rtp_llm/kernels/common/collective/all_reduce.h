// SPDX-License-Identifier: Apache-2.0
// Arguments of the sums over ranks that write into each other's device memory.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/collective/rank_buffers.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// x [size] = its sum over the ranks. Begins at a multiple of 16 bytes and has as many.
struct AllReduceArgs {
  RankBuffers buffers;
  void* x;
  int64_t size;
  DType dtype;
  bool two_shot;  // each rank sums a slice, and pushes it to the others
};

// residual[r] += the sum of x[r] over the ranks, rounded; then x[r] = norm(residual[r]) (norm.h).
// Rows begin at multiples of 16 bytes and have as many; strides are in elements.
struct AllReduceAddRmsNormArgs {
  RankBuffers buffers;
  void* x;
  void* residual;
  const void* weight;
  int64_t rows;
  int64_t size;
  int64_t x_stride;
  int64_t residual_stride;
  DType dtype;
  float eps;
  float offset;
  bool two_shot;
};

// The same, but x stays, and the norm of float32 numbers becomes q * scale in block-scaled FP8
// (fp8_norm.h); `size` is a multiple of 128.
struct AllReduceAddRmsNormFp8Args : AllReduceAddRmsNormArgs {
  void* q;             // e4m3 [rows, size]
  float* scales;       // [size / 128, scale_rows]
  int64_t scale_rows;  // rows rounded up to 4; the padding is set to zero
};

}  // namespace rtp_llm
