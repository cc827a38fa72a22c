// SPDX-License-Identifier: Apache-2.0
// The cache write of multi-head latent attention: norm of the latent, rotation of key and queries.
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/mla/mla.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(
    // Tokens [begin, end). Positions and slots have been checked.
    void mla_rotate_and_store(const MlaRotateAndStoreArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu
