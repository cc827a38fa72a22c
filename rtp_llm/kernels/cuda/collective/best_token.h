// SPDX-License-Identifier: Apache-2.0
// The choice among ranks' tokens over NVLink or PCIe: for NVIDIA GPUs alone.
#pragma once

#include "rtp_llm/kernels/common/collective/best_token.h"

namespace rtp_llm::cuda {

void best_token(const BestTokenArgs& args, void* stream);

}  // namespace rtp_llm::cuda
