// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_launch.h"

namespace rtp_llm::cuda {
namespace {

template <LinearEnd end, bool norm>
void launch(const TiledWna16Args& args, void* stream) {
  visit_wna_blocks(args,
                   [&](auto format) { launch_wna_few<BFloat16, end, norm>(args, format, stream); });
}

}  // namespace

void wna_skinny_blocks(const TiledWna16Args& args, void* stream) {
  const bool norm = args.linear.norm_weight != nullptr;
  switch (args.linear.end) {
    case LinearEnd::kAdd:
      return launch<LinearEnd::kAdd, false>(args, stream);
    case LinearEnd::kFloat:
      return launch<LinearEnd::kFloat, false>(args, stream);
    case LinearEnd::kGate:
      return norm ? launch<LinearEnd::kGate, true>(args, stream)
                  : launch<LinearEnd::kGate, false>(args, stream);
    default:
      return norm ? launch<LinearEnd::kStore, true>(args, stream)
                  : launch<LinearEnd::kStore, false>(args, stream);
  }
}

}  // namespace rtp_llm::cuda
