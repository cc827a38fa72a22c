// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/speculative/ngram.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

RTP_LLM_OPERATOR(match_ngrams)
void match_ngrams(Queue& queue, const MatchNgramsArgs& args) {
  submit(queue, {"ngram_kernel", "match_ngrams", args.rows.num_outputs, kMaxItems}, args);
}

RTP_LLM_OPERATOR(append_accepted)
void append_accepted(Queue& queue, const AppendAcceptedArgs& args) {
  const int64_t outputs = args.rows.num_outputs, items = items_for(outputs);
  submit(queue, {"ngram_kernel", "append_accepted", ceil_div(outputs, items), items}, args);
}

}  // namespace rtp_llm::xpu
