// Linear attention with states: the gated delta rule and the short convolution in front of it.
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"

namespace rtp_llm::cpu {

// Channels of a work item of causal_conv1d, of all sequences.
constexpr int64_t kConvChannels = 64;

// Float32 numbers that a thread of gated_delta_rule needs, aligned to 64 bytes.
inline int64_t delta_rule_scratch(const GatedDeltaRuleArgs& args) {
  return int64_t{args.value_size} * args.key_size + 2 * args.key_size + args.value_size + 64;
}

// Items of causal_conv1d: tiles of kConvChannels channels. Items of gated_delta_rule: value heads
// of sequences, heads innermost. The sequences have been checked; rows of none are left alone.
RTP_LLM_FOR_EACH_ISA(void causal_conv1d(const CausalConv1dArgs& args, int64_t begin, int64_t end);
                     void gated_delta_rule(const GatedDeltaRuleArgs& args, int64_t item,
                                           float* scratch);)

}  // namespace rtp_llm::cpu
