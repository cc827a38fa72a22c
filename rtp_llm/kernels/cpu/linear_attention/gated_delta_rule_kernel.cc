// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_prompt.h"
#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_step.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

template <class T, class State>
void run_item(const GatedDeltaRuleArgs& args, const DeltaRuleItem& item, float* scratch) {
  const StateChunk chunk = state_chunk(args.sequences, item.sequence);
  const DeltaRuleMemory<T, State> memory = {args, chunk, item};
  if (chunk.count <= args.ring / 2) {
    DeltaRuleStep<T, State>(memory, scratch).run();
  } else {
    DeltaRulePrompt<T, State>(memory, scratch).run();
  }
}

}  // namespace

void gated_delta_rule(const GatedDeltaRuleArgs& args, const DeltaRuleItem& item, float* scratch) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.state_dtype == DType::kFloat32) {
      run_item<T, float>(args, item, scratch);
    } else {
      run_item<T, BFloat16>(args, item, scratch);
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
