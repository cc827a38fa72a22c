// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

void sample(Queue& queue, const SampleArgs& args) {
  submit(queue, {"sampling_kernel", "sample", args.logits.num_rows, kMostItems}, args);
}

void top_logprobs(Queue& queue, const RankedLogprobsArgs& args) {
  submit(queue, {"sampling_kernel", "top_logprobs", args.top.logits.num_rows, kMostItems}, args);
}

void apply_token_bitmask(Queue& queue, const BitmaskArgs& args) {
  submit(queue, {"logits_kernel", "apply_token_bitmask", args.num_masks, kMostItems}, args);
}

void apply_penalties(Queue& queue, const CountedPenaltyArgs& args) {
  submit(queue, {"logits_kernel", "apply_penalties", args.num_counts, kMostItems}, args);
}

void ban_repeated_ngrams(Queue& queue, const NgramArgs& args) {
  submit(queue, {"logits_kernel", "ban_repeated_ngrams", args.logits.num_rows, kMostItems}, args);
}

void add_logit_bias(Queue& queue, const LogitBiasArgs& args) {
  const int64_t groups = ceil_div(args.size, kMostItems);
  submit(queue, {"logits_kernel", "add_logit_bias", groups, kMostItems}, args);
}

}  // namespace rtp_llm::xpu
