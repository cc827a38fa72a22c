// SPDX-License-Identifier: Apache-2.0
// Gated activations.
#pragma once

#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/common/cpu_features.h"

namespace rtp_llm::cpu {

// Work is cut into chunks of a row, so that one wide row can use several threads.
constexpr int64_t kActivationChunk = 2048;

constexpr int64_t chunks_of_row(const GatedActivationArgs& args) {
  return (args.size + kActivationChunk - 1) / kActivationChunk;
}

// begin and end count chunks, over all rows.
RTP_LLM_FOR_EACH_ISA(void gated_activation(const GatedActivationArgs& args, int64_t begin,
                                           int64_t end);)

}  // namespace rtp_llm::cpu
