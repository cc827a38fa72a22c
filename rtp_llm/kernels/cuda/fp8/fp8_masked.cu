// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_kernels.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_launch.h"

namespace rtp_llm::cuda {
namespace {

// `places`: blocks at once on a multiprocessor, when all of them may be used.
template <class Shape>
void run(const Fp8GemmArgs& args, int sms, int places, void* stream) {
  launch_stream_masked<Shape>(args, args.num_sms > 0 ? sms : sms * places, stream);
}

}  // namespace

// The shapes that were quickest on an H200 (docs/fp8.md).
void fp8_stream_masked(const Fp8GemmArgs& args, int sms, void* stream) {
  const int64_t rows = args.expected_rows;
  if (rows <= 4) return run<StreamShape<8, 128, 6> >(args, sms, 2, stream);
  if (rows <= 16) return run<StreamShape<16, 128, 5> >(args, sms, 2, stream);
  if (rows <= 32) return run<StreamShape<32, 128, 10> >(args, sms, 1, stream);
  if (rows <= 64) return run<StreamShape<64, 128, 8> >(args, sms, 1, stream);
  run<StreamShape<128, 256, 3, 2> >(args, sms, 1, stream);
}

}  // namespace rtp_llm::cuda
