#include "rtp_llm/kernels/cuda/fp8/fp8_kernels.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_launch.h"
#include "rtp_llm/kernels/cuda/stream_plan.h"

namespace rtp_llm::cuda {
namespace {

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

// The shapes and places that were quickest on an H200 (docs/fp8.md).
void few_rows(const Fp8GemmArgs& args, int64_t sms, bool is_long, void* stream) {
  const int64_t rows = args.rows, two = 2 * sms;
  if (rows <= 8 && is_long) return run<StreamShape<8, 128, 6> >(args, two, stream);
  if (rows <= 8) return run<StreamShape<8, 64, 7> >(args, two, stream);
  if (rows <= 16 && is_long) return run<StreamShape<16, 128, 6> >(args, two, stream);
  if (rows <= 16) return run<StreamShape<16, 64, 7> >(args, two, stream);
  if (is_long) return run<StreamShape<32, 128, 5> >(args, two, stream);
  run<StreamShape<32, 64, 6> >(args, two, stream);
}
void more_rows(const Fp8GemmArgs& args, int64_t sms, bool is_long, void* stream) {
  const int64_t rows = args.rows;
  if (rows <= 128 && is_long) return run<StreamShape<128, 256, 4, 2> >(args, sms, stream);
  if (rows <= 128) return run<StreamShape<128, 192, 5> >(args, sms, stream);
  run<StreamShape<128, 128, 3> >(args, sms, stream);
}

// With 33 to 64 rows a block has a multiprocessor for itself.
template <int rows>
using AloneShape = StreamShape<64, rows, kRingBytes / ((64 + rows) * kChannels + kScaleRow<64>)>;

void middle_rows(const Fp8GemmArgs& args, void* stream) {
  const auto plan = [&](auto shape) {
    using Shape = decltype(shape);
    const int64_t tiles = ceil_div(args.outputs, Shape::kRows);
    return plan_stream<stream_linear<Shape>, Shape>(tiles, args.columns / kChannels, "fp8_gemm");
  };
  run_quickest<AloneShape<64>, AloneShape<128>, AloneShape<192> >(
      plan, [&](auto shape, int split) { launch_stream<decltype(shape)>(args, split, stream); });
}

}  // namespace

void fp8_stream(const Fp8GemmArgs& args, int sms, void* stream) {
  const bool is_long = args.columns >= 8192;  // many channels want many rows of the weight at once
  if (args.rows <= 32) return few_rows(args, sms, is_long, stream);
  if (args.rows <= 64) return middle_rows(args, stream);
  more_rows(args, sms, is_long, stream);
}

}  // namespace rtp_llm::cuda
