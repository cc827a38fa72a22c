// SPDX-License-Identifier: Apache-2.0
// How many blocks share a tile of a weight that is streamed (swap-AB), and which tiles are
// quickest. Only for sm_90a.
#pragma once

#include <array>

#include "rtp_llm/kernels/cuda/k_block_ring.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {

constexpr int kMaxSplit = 5;  // blocks that share the k-blocks of a tile, as a cluster

// How many clusters run at once, by their blocks: the parts of a GPU differ in multiprocessors.
template <auto kernel, class Shape>
std::array<int, kMaxSplit> count_clusters(const char* what) {
  std::array<int, kMaxSplit> counts = {};
  allow_shared<kernel>(Shape::kBytes, what);
  for (int split = 1; split <= kMaxSplit; ++split) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned int>(split), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned int>(split));
    config.blockDim = dim3(Shape::kThreads);
    config.dynamicSmemBytes = Shape::kBytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int& count = counts[split - 1];
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      count = 0;
    }
  }
  if (counts[0] == 0) refuse_shared(what, Shape::kBytes);
  return counts;
}

template <auto kernel, class Shape>
int64_t places_of(int split, const char* what) {
  static const auto clusters = count_clusters<kernel, Shape>(what);
  return int64_t{clusters[split - 1]} * split;
}

// The largest split for which all `tiles` run at once, each block with at least `least` k-blocks;
// 1 if there is none.
template <auto kernel, class Shape>
int widest_split(int64_t tiles, int64_t k_blocks, int64_t least, const char* what) {
  int split = kMaxSplit;
  while (split > 1 &&
         (k_blocks < least * split || tiles * split > places_of<kernel, Shape>(split, what))) {
    --split;
  }
  return split;
}

// Costs in bytes that a multiprocessor could have read meanwhile: of a wave of blocks on top of its
// k-blocks, of a cluster, of each block in it, and of a token's byte relative to one of the weight.
// They were fitted to the times of 25 weights of five models on an H200 in bfloat16 with 16, 32 and
// 64 rows; the plans they choose are 1% slower than the fastest on average. FP8 with 33 to 64 rows
// follows them, too.
constexpr double kWaveCost = 148 << 10, kClusterCost = 44 << 10, kMemberCost = 22 << 10;
constexpr double kTokenByteCost = 0.35;

// Of a k-block of a tile, in the same unit.
template <class Shape>
constexpr double kKBlockCost = kRowBytes * (Shape::kRows + kTokenByteCost * Shape::kTokens);

// With more than two waves, blocks end at different times, so that a partly filled last wave costs
// less than a full one: 0.8 of the difference, which fitted best.
inline double waves_of(int64_t blocks, int64_t places) {
  const auto all = static_cast<double>(ceil_div(blocks, places));
  const double exact = static_cast<double>(blocks) / static_cast<double>(places);
  return all <= 2 ? all : exact + 0.8 * (all - exact);
}

struct StreamPlan {
  double cost = 1e300;
  int split = 1;
};

// The split that costs least for `tiles` of Shape, each of `k_blocks`.
template <auto kernel, class Shape>
StreamPlan plan_stream(int64_t tiles, int64_t k_blocks, const char* what) {
  StreamPlan best;
  for (int split = 1; split <= kMaxSplit && split <= k_blocks; ++split) {
    const int64_t places = places_of<kernel, Shape>(split, what);
    if (places == 0) continue;
    const double wave =
        kKBlockCost<Shape> * static_cast<double>(ceil_div(k_blocks, split)) + kWaveCost;
    const double shared = split == 1 ? 0.0 : kClusterCost + kMemberCost * split;
    const double cost = waves_of(tiles * split, places) * wave + shared;
    if (cost < best.cost) best = {cost, split};
  }
  return best;
}

// Calls run(shape, split) with the cheapest of the shapes of 64, 128 and 192 rows by plan(shape).
template <class Low, class Middle, class High, class Plan, class Run>
void run_quickest(Plan&& plan, Run&& run) {
  const StreamPlan low = plan(Low{}), middle = plan(Middle{}), high = plan(High{});
  if (low.cost <= middle.cost && low.cost <= high.cost) return run(Low{}, low.split);
  if (middle.cost <= high.cost) return run(Middle{}, middle.split);
  run(High{}, high.split);
}

}  // namespace rtp_llm::cuda
