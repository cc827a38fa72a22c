// Arguments of the sums over ranks that write into each other's device memory.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

constexpr int kMostRanks = 8;
constexpr int kRankStateWords = 4;

// Where the ranks meet; rtp_llm/ops/collective/all_reduce.py says more.
struct RankBuffers {
  const int64_t* addresses;  // [ranks + 1]: the buffers of all ranks, and the word that ends waits
  int32_t* state;            // [kRankStateWords], of this rank
  int64_t capacity;          // bytes of a part at most
  int ranks;
  int rank;
  int most_blocks;  // 0: no limit of the caller's
};

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
