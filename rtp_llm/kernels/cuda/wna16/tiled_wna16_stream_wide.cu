// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_stream_launch.h"

namespace rtp_llm::cuda {
namespace {

template <class T>
void pick_tokens(const TiledWna16Args& args, void* stream) {
  launch_quickest_wna<T, WnaTile<64, 128>, WnaTile<128, 128>, WnaTile<256, 128> >(args, stream);
}

}  // namespace

void wna_stream_wide(const TiledWna16Args& args, void* stream) {
  if (args.linear.dtype == DType::kBFloat16) return pick_tokens<BFloat16>(args, stream);
  pick_tokens<Float16>(args, stream);
}

}  // namespace rtp_llm::cuda
