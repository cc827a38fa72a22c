// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_stream_launch.h"

namespace rtp_llm::cuda {

void wna_stream_wide(const TiledWna16Args& args, void* stream) {
  visit_wna(args, [&](auto format) {
    if (args.linear.dtype == DType::kBFloat16) {
      return launch_wide_wna<BFloat16>(args, format, stream);
    }
    launch_wide_wna<Float16>(args, format, stream);
  });
}

}  // namespace rtp_llm::cuda
