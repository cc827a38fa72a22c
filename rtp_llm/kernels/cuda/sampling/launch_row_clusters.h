// SPDX-License-Identifier: Apache-2.0
// The shape and the launch of kernels whose rows are worked on by clusters.
#pragma once

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/sampling_order.h"

namespace rtp_llm::cuda {

constexpr int kBlockThreads = 512;
// More rows than these keep the GPU busy with one block each, of which a multiprocessor then has
// two at once: one computes while the other loads.
constexpr int64_t kMaxClusters = 128;

struct ClusterShape {
  int blocks;
  size_t bytes;  // of dynamic shared memory per block
  bool keep;     // a block's slice of the logits fits into it
};

// Whether a block of `kernel` can have so much dynamic shared memory; it can have it then.
template <auto kernel>
inline bool reserve_shared([[maybe_unused]] size_t bytes) {
#if defined(__HIPCC__)
  return false;
#else
  cudaFuncAttributes attributes;
  const int most = of_device<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return false;
  const size_t all = attributes.sharedSizeBytes + bytes;
  if (all > static_cast<size_t>(most)) return false;
  constexpr size_t kWithoutAsking = 48 * 1024;
  return all <= kWithoutAsking ||
         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes)) == cudaSuccess;
#endif
}

// More blocks for each of few rows; one for each of many, and where there are no clusters. The
// result of a row does not depend on it.
template <auto kernel>
inline ClusterShape cluster_shape([[maybe_unused]] int64_t rows, int64_t vocab) {
  int blocks = 1;
#if !defined(__HIPCC__)
  if (can_overlap<kernel>() && rows <= kMaxClusters) blocks = rows <= 8 ? 8 : rows <= 32 ? 4 : 2;
#endif
  const size_t parts = kBins / blocks * sizeof(Amount);
  const size_t bytes = parts + round_up(ceil_div(vocab, blocks), 4) * sizeof(float);
  if (blocks > 1 && reserve_shared<kernel>(bytes)) return {blocks, bytes, true};
  return {blocks, parts, false};
}

// Launches a kernel that calls wait_for_previous() first.
template <auto kernel, class... Args>
inline void launch_row_clusters(const ClusterShape& shape, int64_t rows, const char* what,
                                void* stream, const Args&... args) {
  const unsigned int grid = blocks(rows * shape.blocks, what);
#if !defined(__HIPCC__)
  if (shape.blocks > 1) {
    launch_clusters<kernel>(grid, kBlockThreads, shape.blocks, shape.bytes, stream, args...);
    return check_launch(what);
  }
#endif
  kernel<<<grid, kBlockThreads, shape.bytes, static_cast<Stream>(stream)>>>(args...);
  check_launch(what);
}

}  // namespace rtp_llm::cuda
