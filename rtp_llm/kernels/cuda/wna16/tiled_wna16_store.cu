// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_launch.h"

namespace rtp_llm::cuda {

void wna_skinny_store(const TiledWna16Args& args, void* stream) {
  pick_wna_skinny<LinearEnd::kStore, true>(args, stream);
}

void wna_skinny_add(const TiledWna16Args& args, void* stream) {
  pick_wna_skinny<LinearEnd::kAdd, false>(args, stream);
}

}  // namespace rtp_llm::cuda
