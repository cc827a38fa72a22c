// SPDX-License-Identifier: Apache-2.0
// Tokens to the ranks of their experts and back over NVLink or PCIe: for NVIDIA GPUs alone.
#pragma once

#include "rtp_llm/kernels/common/collective/token_exchange.h"

namespace rtp_llm::cuda {

void dispatch_tokens(const DispatchTokensArgs& args, void* stream);
void combine_tokens(const CombineTokensArgs& args, void* stream);

}  // namespace rtp_llm::cuda
