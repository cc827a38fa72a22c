// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_kernels.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_launch.h"
#include "rtp_llm/kernels/cuda/stream_plan.h"

namespace rtp_llm::cuda {
namespace {

constexpr const char* kWhat = "fp8_gemm";

// As many blocks for the channels of a tile (1, 2 or 4) as there are places for blocks: `places` on
// each multiprocessor.
template <class Shape>
void run(const Fp8GemmArgs& args, int64_t places, void* stream) {
  const int64_t tiles = ceil_div(args.outputs, Shape::kRows) * ceil_div(args.rows, Shape::kTokens);
  int split = 1;
  while (split < 4 && tiles * split * 2 <= places && 2 * split <= args.columns / kChannels) {
    split *= 2;
  }
  launch_stream<Shape>(args, split, stream);
}

// Tiles with one block per multiprocessor.
template <int tokens, int rows>
using AloneShape =
    StreamShape<tokens, rows, kRingBytes / ((tokens + rows) * kChannels + kScaleRow<tokens>)>;

template <class Shape>
int64_t tiles_of(const Fp8GemmArgs& args) {
  return ceil_div(args.outputs, Shape::kRows);
}

template <class Shape>
int split_of(const Fp8GemmArgs& args) {
  constexpr int kLeast = 8;  // k-blocks of a block
  return widest_split<fp8_stream_linear<Shape>, Shape>(tiles_of<Shape>(args),
                                                       args.columns / kChannels, kLeast, kWhat);
}

// Small tiles, three to a multiprocessor: while one scales its sums, others multiply. Where rows
// are long and few blocks can share a tile, large ones. Within 3% of the quickest of 15 shapes and
// five splits for 18 of 19 weights on an H200.
template <int tokens>
void few_rows(const Fp8GemmArgs& args, void* stream) {
  using Small = StreamShape<tokens, 64, tokens <= 16 ? 7 : 6>;
  using Large = AloneShape<tokens, 128>;
  constexpr int64_t kLongRow = 8192;
  const int split = split_of<Small>(args);
  if (split > 2 || args.columns < kLongRow) return launch_stream<Small>(args, split, stream);
  launch_stream<Large>(args, split_of<Large>(args), stream);
}

// The shapes and places that were quickest on an H200 (docs/fp8.md).
void more_rows(const Fp8GemmArgs& args, int64_t sms, bool is_long, void* stream) {
  const int64_t rows = args.rows;
  if (rows <= 128 && is_long) return run<StreamShape<128, 256, 4, 2> >(args, sms, stream);
  if (rows <= 128) return run<StreamShape<128, 192, 5> >(args, sms, stream);
  run<StreamShape<128, 128, 3> >(args, sms, stream);
}

// 33 to 64.
void middle_rows(const Fp8GemmArgs& args, void* stream) {
  const auto plan = [&](auto shape) {
    using Shape = decltype(shape);
    return plan_stream<fp8_stream_linear<Shape>, Shape>(tiles_of<Shape>(args),
                                                        args.columns / kChannels, kWhat);
  };
  run_quickest<AloneShape<64, 64>, AloneShape<64, 128>, AloneShape<64, 192> >(
      plan, [&](auto shape, int split) { launch_stream<decltype(shape)>(args, split, stream); });
}

}  // namespace

void fp8_stream(const Fp8GemmArgs& args, int sms, void* stream) {
  if (args.rows <= 8) return few_rows<8>(args, stream);
  if (args.rows <= 16) return few_rows<16>(args, stream);
  if (args.rows <= 32) return few_rows<32>(args, stream);
  if (args.rows <= 64) return middle_rows(args, stream);
  const bool is_long = args.columns >= 8192;  // many channels need many rows of the weight at once
  more_rows(args, sms, is_long, stream);
}

}  // namespace rtp_llm::cuda
