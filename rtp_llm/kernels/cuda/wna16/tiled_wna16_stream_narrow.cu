// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_stream_launch.h"

namespace rtp_llm::cuda {

bool runs_wna_stream() {
  using Shape = WnaStreamShape<16, 64, WnaFormat<4, 1, false> >;
  return runs_hopper_code<tiled_wna16_stream_kernel<BFloat16, Shape> >();
}

void wna_stream_narrow(const TiledWna16Args& args, void* stream) {
  visit_wna(args, [&](auto format) {
    if (args.linear.dtype == DType::kBFloat16) {
      return launch_narrow_wna<BFloat16>(args, format, stream);
    }
    launch_narrow_wna<Float16>(args, format, stream);
  });
}

}  // namespace rtp_llm::cuda
