// SPDX-License-Identifier: Apache-2.0
// The launch of streams, with the tiles and the clusters that are quickest for a weight.
#include "rtp_llm/kernels/cuda/gemm/stream_linear.h"

#include "rtp_llm/kernels/cuda/gemm/skinny_linear.h"
#include "rtp_llm/kernels/cuda/gemm/stream_linear_tile.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/stream_plan.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"

namespace rtp_llm::cuda {
namespace {

constexpr const char* kWhat = "stream_linear";

template <class Shape>
int64_t tiles_of(const SkinnyLinearArgs& args) {
  const int planes = planes_of(args.end);
  return ceil_div(args.outputs / planes, Shape::kRows / planes);
}

CUtensorMap box_map(const void* data, int64_t stride, int64_t columns, int64_t rows, int64_t planes,
                    int64_t box_rows) {
  constexpr int kSize = 2;  // bytes of a number; which one, the copy engine need not know
  return tensor_map({data,
                     CU_TENSOR_MAP_DATA_TYPE_UINT16,
                     {columns, rows, planes},
                     {stride * kSize, stride * kSize * rows},
                     {kStreamColumns, static_cast<int>(box_rows), static_cast<int>(planes)},
                     true},
                    kWhat);
}

// Call after a plan, which reserves the shared memory.
template <class T, class Shape>
void launch(const SkinnyLinearArgs& args, int split, void* stream) {
  constexpr auto kKernel = stream_linear_kernel<T, Shape>;
  const int planes = planes_of(args.end);
  const LinearStreamMaps maps = {
      box_map(args.weight, args.weight_stride, args.columns, args.outputs / planes, planes,
              Shape::kRows / planes),
      box_map(args.x, args.x_stride, args.columns, args.rows, 1, Shape::kTokens)};
  launch_clusters<kKernel>(dim3(blocks(tiles_of<Shape>(args) * split, kWhat)),
                           dim3(Shape::kThreads), split, Shape::kBytes, stream, maps, args, split);
  check_launch(kWhat);
}

template <class T, int tokens>
void launch_quickest(const SkinnyLinearArgs& args, void* stream) {
  const auto plan = [&](auto shape) {
    using Shape = decltype(shape);
    const int64_t k_blocks = args.columns / kStreamColumns;
    return plan_stream<stream_linear_kernel<T, Shape>, Shape>(tiles_of<Shape>(args), k_blocks,
                                                              kWhat);
  };
  run_quickest<LinearStreamShape<tokens, 64>, LinearStreamShape<tokens, 128>,
               LinearStreamShape<tokens, 192> >(
      plan, [&](auto shape, int split) { launch<T, decltype(shape)>(args, split, stream); });
}

template <class T>
void pick_tokens(const SkinnyLinearArgs& args, void* stream) {
  if (args.rows <= 16) return launch_quickest<T, 16>(args, stream);
  if (args.rows <= 32) return launch_quickest<T, 32>(args, stream);
  launch_quickest<T, kStreamRows>(args, stream);
}

}  // namespace

int64_t stream_linear_rows(int64_t outputs, int64_t columns, DType dtype) {
  if (!takes_skinny_weight(outputs, columns, dtype)) return 0;
  constexpr auto kAny = stream_linear_kernel<BFloat16, LinearStreamShape<16, 64> >;
  return runs_hopper_code<kAny>() ? kStreamRows : 0;
}

bool streams_faster(const SkinnyLinearArgs& args) {
  constexpr int64_t kFewRows = 8, kLongRow = 4096;
  if (args.rows > stream_linear_rows(args.outputs, args.columns, args.dtype)) return false;
  if (args.rows > fused_linear_rows(args.outputs, args.columns, args.dtype)) return true;
  return args.rows > kFewRows && args.columns >= kLongRow;
}

void stream_linear(const SkinnyLinearArgs& args, void* stream) {
  if (args.rows == 0 || args.outputs == 0) return;
  if (args.dtype == DType::kBFloat16) {
    pick_tokens<BFloat16>(args, stream);
  } else {
    pick_tokens<Float16>(args, stream);
  }
}

}  // namespace rtp_llm::cuda
