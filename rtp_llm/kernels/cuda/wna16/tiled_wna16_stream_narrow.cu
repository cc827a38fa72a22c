// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_stream_launch.h"

namespace rtp_llm::cuda {
namespace {

template <class T>
void pick_tokens(const TiledWna16Args& args, void* stream) {
  if (args.linear.rows <= 16) {
    return launch_quickest_wna<T, WnaTile<16, 64>, WnaTile<16, 128>, WnaTile<16, 192> >(args,
                                                                                        stream);
  }
  launch_quickest_wna<T, WnaTile<32, 64>, WnaTile<32, 128>, WnaTile<32, 192> >(args, stream);
}

}  // namespace

bool runs_wna_stream() {
  return runs_hopper_code<tiled_wna16_stream_kernel<BFloat16, WnaStreamShape<16, 64, 4, 1> > >();
}

void wna_stream_narrow(const TiledWna16Args& args, void* stream) {
  if (args.linear.dtype == DType::kBFloat16) return pick_tokens<BFloat16>(args, stream);
  pick_tokens<Float16>(args, stream);
}

}  // namespace rtp_llm::cuda
