// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norms of rows [begin, end); qk_rms_norm: of the heads of tokens [begin, end).
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/norm/norm.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end);
                     void fused_add_rms_norm(const FusedAddRmsNormArgs& args, int64_t begin,
                                             int64_t end);
                     void qk_rms_norm(const QkRmsNormArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu
