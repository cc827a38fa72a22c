// SPDX-License-Identifier: Apache-2.0
// Gated activations.
#pragma once

#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/common/cpu_features.h"

namespace rtp_llm::cpu {

// begin and end count chunks, over all rows.
RTP_LLM_FOR_EACH_ISA(void gated_activation(const GatedActivationArgs& args, int64_t begin,
                                           int64_t end);)

}  // namespace rtp_llm::cpu
