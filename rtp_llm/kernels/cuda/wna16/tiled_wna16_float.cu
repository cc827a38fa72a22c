// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_launch.h"

namespace rtp_llm::cuda {

void wna_skinny_float(const TiledWna16Args& args, void* stream) {
  pick_wna_skinny<LinearEnd::kFloat, false>(args, stream);
}

}  // namespace rtp_llm::cuda
