// SPDX-License-Identifier: Apache-2.0
// The host's side of fp8_stream.h and fp8_tile.h: maps and launches of one shape of kernel.
#pragma once

#include "rtp_llm/kernels/cuda/fp8/fp8_masked.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_stream.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_tile.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"

namespace rtp_llm::cuda {

// A map with boxes of `rows` x 128 channels of a matrix [groups, height, K] of bytes.
inline CUtensorMap channel_map(const void* data, const Fp8GemmArgs& args, int64_t groups,
                               int64_t height, int rows) {
  const int64_t columns = args.columns;
  return tensor_map({data,
                     CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     {columns, height, groups},
                     {columns, columns * height},
                     {kChannels, rows, 1},
                     true},
                    "fp8_gemm");
}

// A map with boxes of `rows` scales of one k-block.
inline CUtensorMap scale_map(const Fp8GemmArgs& args, int64_t groups, int rows) {
  const int64_t k_blocks = args.columns / kChannels;
  return tensor_map({args.scales,
                     CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                     {args.scale_rows, k_blocks, groups},
                     {args.scale_rows * 4, args.scale_rows * 4 * k_blocks},
                     {rows, 1, 1},
                     false},
                    "fp8_gemm");
}

inline int64_t row_groups(const Fp8GemmArgs& args) {
  return args.form == Fp8Form::kMasked ? args.groups : 1;
}

template <auto kernel, class... Args>
inline void launch_fp8(dim3 grid, int threads, int shared_bytes, int cluster, void* stream,
                       const Args&... args) {
  allow_shared<kernel>(shared_bytes, "fp8_gemm");
  launch_clusters<kernel>(grid, dim3(static_cast<unsigned int>(threads)), cluster,
                          static_cast<size_t>(shared_bytes), stream, args...);
  check_launch("fp8_gemm");
}

template <class Shape>
inline StreamMaps stream_maps(const Fp8GemmArgs& args) {
  return {channel_map(args.weight, args, args.groups, args.outputs, Shape::kRows),
          channel_map(args.q, args, row_groups(args), args.rows, Shape::kTokens),
          scale_map(args, row_groups(args), Shape::kTokens)};
}

// `split` blocks share the channels of a tile.
template <class Shape>
inline void launch_stream(const Fp8GemmArgs& args, int split, void* stream) {
  const unsigned int x = blocks(ceil_div(args.outputs, Shape::kRows) * split, "fp8_gemm");
  const unsigned int y = side_blocks(ceil_div(args.rows, Shape::kTokens), "fp8_gemm");
  launch_fp8<fp8_stream_linear<Shape> >(dim3(x, y), Shape::kThreads, Shape::kBytes, split, stream,
                                        stream_maps<Shape>(args), args, split);
}

// `grid` blocks share the tiles of all groups.
template <class Shape>
inline void launch_stream_masked(const Fp8GemmArgs& args, int grid, void* stream) {
  launch_fp8<stream_masked<Shape> >(dim3(static_cast<unsigned int>(grid)), Shape::kThreads,
                                    Shape::kBytes + kStagingBytes<Shape>, 1, stream,
                                    stream_maps<Shape>(args), args);
}

template <class Shape, Fp8Form form>
inline void launch_tile(const Fp8GemmArgs& args, int grid, void* stream) {
  const TileMaps maps = {channel_map(args.weight, args, args.groups, args.outputs, Shape::kOutputs),
                         channel_map(args.q, args, row_groups(args), args.rows, Shape::kRows / 2),
                         scale_map(args, row_groups(args), Shape::kRows)};
  launch_fp8<tile_gemm<Shape, form> >(dim3(static_cast<unsigned int>(grid)), Shape::kThreads,
                                      Shape::kBytes, Shape::kCluster, stream, maps, args);
}

}  // namespace rtp_llm::cuda
