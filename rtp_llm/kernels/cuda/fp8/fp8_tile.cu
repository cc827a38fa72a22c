// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_kernels.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_launch.h"

namespace rtp_llm::cuda {
namespace {

// Rows by outputs.
using Wide = TileShape<2, 4>;          // 256 x 128
using Narrow = TileShape<1, 6>;        // 128 x 128
using Long = TileShape<1, 4, 128, 2>;  // 128 x 256
using Small = TileShape<1, 9, 64>;     // 128 x 64

constexpr int64_t kNarrowRows = 256;  // up to this many rows, Wide was slower

template <class Shape>
int64_t tiles(const Fp8GemmArgs& args) {
  return ceil_div(args.rows, Shape::kRows) * ceil_div(args.outputs, Shape::kOutputs);
}

// The largest tiles of which every multiprocessor still has one.
void plain_tiles(const Fp8GemmArgs& args, int grid, void* stream) {
  constexpr auto kForm = Fp8Form::kPlain;
  if (tiles<Small>(args) <= grid) return launch_tile<Small, kForm>(args, grid, stream);
  const bool narrow = args.rows <= kNarrowRows || tiles<Narrow>(args) <= grid;
  if (narrow) return launch_tile<Narrow, kForm>(args, grid, stream);
  launch_tile<Wide, kForm>(args, grid, stream);
}

// Narrow tiles of all groups, when each has as many rows as expected.
int64_t narrow_tiles(const Fp8GemmArgs& args) {
  if (args.form == Fp8Form::kContiguous) return tiles<Narrow>(args);
  return ceil_div(args.expected_rows, Narrow::kRows) * args.groups *
         ceil_div(args.outputs, Narrow::kOutputs);
}

// As many rows as a group has are rarely full tiles of 256: few rows by many outputs instead, where
// two such tiles have no outputs outside of the weight, and smaller ones would take several waves.
template <Fp8Form form>
void group_tiles(const Fp8GemmArgs& args, int grid, void* stream) {
  const bool whole = args.outputs % (Long::kCluster * Long::kOutputs) == 0;
  if (whole && narrow_tiles(args) > grid) return launch_tile<Long, form>(args, grid, stream);
  launch_tile<Narrow, form>(args, grid, stream);
}

}  // namespace

void fp8_tiles(const Fp8GemmArgs& args, int sms, void* stream) {
  const int grid = sms < 2 ? 2 : sms / 2 * 2;  // clusters of two blocks
  switch (args.form) {
    case Fp8Form::kPlain:
      return plain_tiles(args, grid, stream);
    case Fp8Form::kMasked:
      return group_tiles<Fp8Form::kMasked>(args, grid, stream);
    case Fp8Form::kContiguous:
      return group_tiles<Fp8Form::kContiguous>(args, grid, stream);
    case Fp8Form::kRagged:
      return group_tiles<Fp8Form::kRagged>(args, grid, stream);
  }
}

}  // namespace rtp_llm::cuda
