// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/linear_attention/linear_attention.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

RTP_LLM_OPERATOR(causal_conv1d)
void causal_conv1d(Queue& queue, const CausalConv1dArgs& args) {
  const int64_t items = items_for(args.channels);
  const char* const program = "causal_conv1d_kernel";
  submit(queue, {program, entry("convolve", args.dtype), args.sequences.num_tokens, items}, args);
  // After all inputs were read: a block may be read and written.
  submit(queue,
         {program, entry("keep_inputs", args.dtype), args.sequences.num_seqs * args.window, items},
         args);
}

RTP_LLM_OPERATOR(gated_delta_rule)
void gated_delta_rule(Queue& queue, const GatedDeltaRuleArgs& args) {
  if (args.key_size > kMaxStateKeys) {
    throw std::runtime_error("gated_delta_rule: key heads of " + std::to_string(args.key_size) +
                             "; this device takes up to " + std::to_string(kMaxStateKeys));
  }
  const int64_t tiles = ceil_div(args.value_size, kStateRows);
  // One sequence more for the rows that belong to none.
  const int64_t groups = (args.sequences.num_seqs + 1) * args.heads * tiles;
  submit(queue,
         {"gated_delta_rule_kernel", entry("gated_delta_rule", args.dtype), groups, kStateRows},
         args);
}

}  // namespace rtp_llm::xpu
