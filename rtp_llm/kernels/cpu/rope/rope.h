// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of packed Q, K, V rows, and the write of K and V into the paged cache.
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/rope/rope.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(
    // Tokens [begin, end). Positions and slots have been checked.
    void rope_kv_write(const RopeKvWriteArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu
