// SPDX-License-Identifier: Apache-2.0
// Which shape of blocks multiplies few rows with a weight in groups, and its launch.
#pragma once

#include <algorithm>

#include "rtp_llm/kernels/cuda/wna16/tiled_wna16.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_skinny.h"

namespace rtp_llm::cuda {

constexpr int64_t kWnaSkinnyRows = kTileTokens;

// Whether the weight has a format that only GGUF blocks have; such weights take bfloat16 alone.
inline bool has_blocks(const TiledWna16Args& args) {
  return args.float_zero || args.bits == 5 || args.bits == 6;
}

// Calls body(format) for a weight without blocks.
template <class Body>
inline void visit_wna(const TiledWna16Args& args, Body&& body) {
  const auto visit_groups = [&](auto bits) {
    if (args.groups == 1) return body(WnaFormat<bits, 1, false>{});
    if (args.groups == 2) return body(WnaFormat<bits, 2, false>{});
    return body(WnaFormat<bits, 4, false>{});
  };
  if (args.bits == 4) return visit_groups(std::integral_constant<int, 4>{});
  return visit_groups(std::integral_constant<int, 8>{});
}

// The same for one with blocks.
template <class Body>
inline void visit_wna_blocks(const TiledWna16Args& args, Body&& body) {
  if (args.bits == 6) return body(WnaFormat<6, 8, false>{});
  if (args.bits == 4) return body(WnaFormat<4, 4, true>{});
  if (args.float_zero) return body(WnaFormat<5, 4, true>{});
  return body(WnaFormat<5, 4, false>{});
}

// Eight warps, whose registers leave room for two blocks on a multiprocessor. Each has two pairs of
// k-blocks under way: with a third, tokens arrive later, since their loads queue behind the
// weight's. Four products of a layer of Qwen3-8B in 4 bits take 40.5 us, with three pairs 41.8.
template <class Format>
using WnaFewShape = WnaShape<8, 2, 2, Format>;

inline int64_t shared_of_multiprocessor() {
  return of_device<cudaDevAttrMaxSharedMemoryPerMultiprocessor>();
}

// Blocks of a grid: as many as run at once. Room for the next kernel, which starts early, would not
// help: kernels that divide a multiprocessor's memory into other parts of L1 and shared memory wait
// until it is empty, and then two of their blocks come to lie on some multiprocessors and none on
// others. The four products of a layer then took 64 us instead of 42.
template <class Shape>
int64_t wna_blocks(int64_t tiles, int64_t bytes) {
  constexpr int64_t kReserved = 1 << 10;  // of shared memory, for each block
  const int64_t at_once =
      std::clamp<int64_t>(shared_of_multiprocessor() / (bytes + kReserved), 1, Shape::kBlocks);
  return std::min(tiles, at_once * multiprocessors());
}

// Of a block's shared memory. With more rows than kWnaTwiceRows there is room for one block alone:
// two would bring all tokens twice.
template <class T, class Shape>
int64_t wna_bytes(const SkinnyLinearArgs& args, bool norm) {
  constexpr int64_t kWnaTwiceRows = 4;
  const int64_t bytes = WnaMemory<T, Shape>::bytes(args.rows, args.columns, norm);
  return args.rows > kWnaTwiceRows ? std::max(bytes, shared_of_multiprocessor() / 2) : bytes;
}

template <class T, LinearEnd end, bool norm, class Format>
void launch_wna_few(const TiledWna16Args& args, Format /*format*/, void* stream) {
  using Shape = WnaFewShape<Format>;
  constexpr auto kKernel = tiled_wna16_skinny_kernel<T, Shape, end, norm>;
  const int64_t bytes = wna_bytes<T, Shape>(args.linear, norm);
  allow_shared<kKernel>(bytes, "tiled_wna16");
  const int64_t blocks = wna_blocks<Shape>(args.linear.outputs / kTileRows, bytes);
  launch_overlapped<kKernel>(static_cast<unsigned int>(blocks), Shape::kThreads,
                             static_cast<size_t>(bytes), stream, args);
  check_launch("tiled_wna16");
}

// Norms rows of bfloat16 only, as skinny_linear.cu does.
template <LinearEnd end, bool can_norm>
void pick_wna_skinny(const TiledWna16Args& args, void* stream) {
  const bool norm = can_norm && args.linear.norm_weight != nullptr;
  visit_wna(args, [&](auto format) {
    if (args.linear.dtype == DType::kFloat16) {
      return launch_wna_few<Float16, end, false>(args, format, stream);
    }
    return norm ? launch_wna_few<BFloat16, end, can_norm>(args, format, stream)
                : launch_wna_few<BFloat16, end, false>(args, format, stream);
  });
}

}  // namespace rtp_llm::cuda
