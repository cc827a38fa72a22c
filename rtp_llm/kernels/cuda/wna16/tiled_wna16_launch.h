// SPDX-License-Identifier: Apache-2.0
// Which shape of blocks multiplies few rows with a weight in groups, and its launch.
#pragma once

#include <algorithm>

#include "rtp_llm/kernels/cuda/wna16/tiled_wna16.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_skinny.h"

namespace rtp_llm::cuda {

constexpr int64_t kWnaSkinnyRows = kTileTokens;

// Calls body(bits, groups) with integral constants.
template <class Body>
inline void visit_wna(const TiledWna16Args& args, Body&& body) {
  const auto visit_groups = [&](auto bits) {
    if (args.groups == 1) return body(bits, std::integral_constant<int, 1>{});
    if (args.groups == 2) return body(bits, std::integral_constant<int, 2>{});
    return body(bits, std::integral_constant<int, 4>{});
  };
  if (args.bits == 4) return visit_groups(std::integral_constant<int, 4>{});
  return visit_groups(std::integral_constant<int, 8>{});
}

// Eight warps, whose registers leave room for two blocks on a multiprocessor. Each has three pairs
// of k-blocks under way: a fourth was 2 to 5% slower.
template <int bits, int groups>
using WnaFewShape = WnaShape<8, bits == 4 ? 3 : 2, 2, bits, groups>;

// Blocks of a grid: as many as run at once. Were there fewer, then the next kernels, which start
// early, would get two blocks on some multiprocessors and none on others: with one block for each
// multiprocessor, the four products of a layer of Qwen3-8B take 68 us instead of 44.
template <class Shape>
int64_t wna_blocks(int64_t tiles, int64_t bytes) {
  constexpr int64_t kReserved = 1 << 10;  // of shared memory, for each block
  const int64_t room = of_device<cudaDevAttrMaxSharedMemoryPerMultiprocessor>();
  const int64_t at_once = std::clamp<int64_t>(room / (bytes + kReserved), 1, Shape::kBlocks);
  return std::min(tiles, at_once * multiprocessors());
}

template <class T, LinearEnd end, bool norm>
void launch_wna_skinny(const TiledWna16Args& args, void* stream) {
  visit_wna(args, [&](auto bits, auto groups) {
    using Shape = WnaFewShape<bits, groups>;
    constexpr auto kKernel = tiled_wna16_skinny_kernel<T, Shape, end, norm>;
    const int64_t bytes = WnaMemory<T, Shape>::bytes(args.linear.rows, args.linear.columns, norm);
    allow_shared<kKernel>(bytes, "tiled_wna16");
    const int64_t blocks = wna_blocks<Shape>(args.linear.outputs / kTileRows, bytes);
    launch_overlapped<kKernel>(static_cast<unsigned int>(blocks), Shape::kThreads,
                               static_cast<size_t>(bytes), stream, args);
  });
  check_launch("tiled_wna16");
}

// Norms rows of bfloat16 only, as skinny_linear.cu does.
template <LinearEnd end, bool can_norm>
void pick_wna_skinny(const TiledWna16Args& args, void* stream) {
  const bool norm = args.linear.norm_weight != nullptr;
  if (args.linear.dtype == DType::kFloat16) {
    return launch_wna_skinny<Float16, end, false>(args, stream);
  }
  return norm && can_norm ? launch_wna_skinny<BFloat16, end, can_norm>(args, stream)
                          : launch_wna_skinny<BFloat16, end, false>(args, stream);
}

}  // namespace rtp_llm::cuda
