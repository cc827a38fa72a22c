// SPDX-License-Identifier: Apache-2.0
// The gated delta rule where every sequence has few new tokens, on NVIDIA's sm_90.
#pragma once

#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"

namespace rtp_llm::cuda {

// False, and nothing is launched, when the arguments or the GPU are none that it is made for. The
// blocks of the state and of the rings begin at multiples of 16 bytes.
bool gated_delta_step(const GatedDeltaRuleArgs& args, void* stream);

}  // namespace rtp_llm::cuda
