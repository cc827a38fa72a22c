// SPDX-License-Identifier: Apache-2.0
// The launch of streams of a weight in groups, with the tiles and the clusters that are quickest.
#pragma once

#include <algorithm>

#include "rtp_llm/kernels/cuda/stream_plan.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_launch.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_stream.h"

namespace rtp_llm::cuda {

constexpr const char* kWna = "tiled_wna16";

// In bytes read meanwhile, as measured on an H200 in bfloat16: codes become floats, or products of
// many tokens take longer.
template <int J, int R, class Format>
constexpr double kKBlockCost<WnaStreamShape<J, R, Format> > =
    std::max(5500.0 + 72 * R + 50 * J, 1.38 * R * J);

template <class Shape>
int64_t wna_tiles(const SkinnyLinearArgs& args) {
  const int planes = planes_of(args.end);
  return ceil_div(args.outputs / planes, Shape::kRows / planes) *
         ceil_div(args.rows, Shape::kTokens);
}

// Call after a plan, which reserves the shared memory.
template <class T, class Shape>
void launch_wna_stream(const TiledWna16Args& args, int split, void* stream) {
  constexpr auto kKernel = tiled_wna16_stream_kernel<T, Shape>;
  const SkinnyLinearArgs& linear = args.linear;
  const CUtensorMap tokens = tensor_map({linear.x,
                                         CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                         {linear.columns, linear.rows, 1},
                                         {linear.x_stride * 2, linear.x_stride * 2 * linear.rows},
                                         {kStreamColumns, Shape::kTokens, 1},
                                         true},
                                        kWna);
  launch_clusters<kKernel>(dim3(blocks(wna_tiles<Shape>(linear) * split, kWna)),
                           dim3(Shape::kThreads), split, Shape::kBytes, stream, tokens, args,
                           split);
  check_launch(kWna);
}

// (tokens, rows) of a tile.
template <int J, int R>
struct WnaTile {
  template <class Format>
  using Shape = WnaStreamShape<J, R, Format>;
};

// The quickest of three tiles.
template <class T, class Low, class Middle, class High, class Format>
void launch_quickest_wna(const TiledWna16Args& args, Format /*format*/, void* stream) {
  const auto plan = [&](auto shape) {
    using Shape = decltype(shape);
    return plan_stream<tiled_wna16_stream_kernel<T, Shape>, Shape>(
        wna_tiles<Shape>(args.linear), args.linear.columns / kWnaColumns, kWna);
  };
  run_quickest<typename Low::template Shape<Format>, typename Middle::template Shape<Format>,
               typename High::template Shape<Format> >(plan, [&](auto shape, int split) {
    launch_wna_stream<T, decltype(shape)>(args, split, stream);
  });
}

// Up to kWnaNarrowRows rows.
template <class T, class Format>
void launch_narrow_wna(const TiledWna16Args& args, Format format, void* stream) {
  if (args.linear.rows <= 16) {
    launch_quickest_wna<T, WnaTile<16, 64>, WnaTile<16, 128>, WnaTile<16, 192> >(args, format,
                                                                                 stream);
  } else {
    launch_quickest_wna<T, WnaTile<32, 64>, WnaTile<32, 128>, WnaTile<32, 192> >(args, format,
                                                                                 stream);
  }
}

template <class T, class Format>
void launch_wide_wna(const TiledWna16Args& args, Format format, void* stream) {
  launch_quickest_wna<T, WnaTile<64, 128>, WnaTile<128, 128>, WnaTile<256, 128> >(args, format,
                                                                                  stream);
}

}  // namespace rtp_llm::cuda
