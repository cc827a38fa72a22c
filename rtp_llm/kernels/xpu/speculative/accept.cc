// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/speculative/accept.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

RTP_LLM_OPERATOR(accept_drafts)
void accept_drafts(Queue& queue, const AcceptDraftsArgs& args) {
  const int64_t items = items_for(args.num_outputs);
  submit(queue, {"accept_kernel", "accept_drafts", ceil_div(args.num_outputs, items), items}, args);
}

RTP_LLM_OPERATOR(correct_positions)
void correct_positions(Queue& queue, const CorrectPositionsArgs& args) {
  const int64_t items =
      args.num_seqs == 0 ? 1 : items_for(ceil_div(args.num_tokens, args.num_seqs));
  submit(queue, {"accept_kernel", "correct_positions", args.num_seqs, items}, args);
}

}  // namespace rtp_llm::xpu
