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
};

}  // namespace rtp_llm
