// SPDX-License-Identifier: Apache-2.0
// The launch of products of many rows in MXFP4, and the kernel that brings the rows in order.
#include "rtp_llm/kernels/cuda/moe/mxfp4_experts_wgmma.h"

#include <algorithm>

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"
#include "rtp_llm/kernels/cuda/transpose.h"

namespace rtp_llm::cuda {
namespace {

constexpr const char* kWhat = "mxfp4_experts";
constexpr int kOrderThreads = 192;

using Shape = ManyRowsShape<2, 2, 128>;

// Copies the row of x of each entry. Of 32 columns the operands of an instruction have a pair from
// each eight: four lanes, which read eight each, exchange them.
__global__ void __launch_bounds__(kOrderThreads) order_rows(Mxfp4ExpertsArgs args, uint4* out) {
  const int place = static_cast<int>(blockIdx.x), chunks = static_cast<int>(args.k / 8);
  let_next_start();
  wait_for_previous();
  if (place >= args.offsets[args.experts]) return;
  const uint4* const from = static_cast<const uint4*>(args.x) + source_row(args, place) * chunks;
  for (int first = 0; first < chunks; first += kOrderThreads) {
    const int chunk = first + thread_index();
    const uint4 columns = from[min(chunk, chunks - 1)];
    uint32_t pairs[4] = {columns.x, columns.y, columns.z, columns.w};
    transpose_four_lanes(pairs);
    if (chunk < chunks) {
      out[int64_t{place} * chunks + chunk] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

// Boxes of a step's words of a tile's panels.
CUtensorMap panel_map(const void* data, const Mxfp4ExpertsArgs& args, int64_t step_bytes) {
  const int64_t steps = args.k / kStepColumns, panels = args.experts * args.n / kWeightRows;
  const int64_t words = step_bytes / 4;
  return tensor_map({data,
                     CU_TENSOR_MAP_DATA_TYPE_UINT32,
                     {words, steps, panels},
                     {step_bytes, step_bytes * steps},
                     {static_cast<int>(words), 1, Shape::kPanels},
                     false},
                    kWhat);
}

CUtensorMap token_map(const void* rows, const Mxfp4ExpertsArgs& args) {
  return tensor_map({rows,
                     CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     {args.k, args.entries, 1},
                     {args.k * 2, args.k * args.entries * 2},
                     {kStepColumns, Shape::kTokens, 1},
                     true},
                    kWhat);
}

template <bool kGated>
void multiply(const Mxfp4ExpertsArgs& args, const void* rows, void* stream) {
  constexpr auto kKernel = multiply_many_rows<Shape, kGated>;
  const ManyRowsMaps maps = {token_map(rows, args), panel_map(args.weight, args, kStepBytes),
                             panel_map(args.scales, args, kStepScales)};
  // As many tiles as there can be, however the entries are divided among the experts.
  const int64_t tiles =
      (args.entries / Shape::kTokens + args.experts) * ceil_div(args.n, Shape::kRows);
  const int64_t grid = std::min<int64_t>(multiprocessors(), tiles);
  allow_shared<kKernel>(Shape::kBytes, kWhat);
  launch_overlapped<kKernel>(dim3(blocks(grid, kWhat)), dim3(Shape::kThreads), Shape::kBytes,
                             stream, maps, args);
  check_launch(kWhat);
}

}  // namespace

bool takes_many_mxfp4_rows(const Mxfp4ExpertsArgs& args) {
  // Rows of an expert, if all have as many, from which on this was faster with 32 experts of
  // 2880 x 2880 on an H200.
  constexpr int64_t kMany = 96;
  return args.entries / args.experts >= kMany && args.experts <= kMaxGroups &&
         runs_hopper_code<multiply_many_rows<Shape, false> >();
}

int64_t many_mxfp4_rows_scratch(const Mxfp4ExpertsArgs& args) {
  return takes_many_mxfp4_rows(args) ? args.entries * args.k * 2 : 0;
}

void many_mxfp4_rows(const Mxfp4ExpertsArgs& args, bool gated, void* memory, void* stream) {
  launch_overlapped<order_rows>(dim3(blocks(args.entries, kWhat)), dim3(kOrderThreads), 0, stream,
                                args, static_cast<uint4*>(memory));
  check_launch(kWhat);
  gated ? multiply<true>(args, memory, stream) : multiply<false>(args, memory, stream);
}

}  // namespace rtp_llm::cuda
