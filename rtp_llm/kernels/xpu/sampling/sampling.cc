// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/sampling/rejection.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

namespace {

void check_vocab(const LogitRows& logits) {
  if (logits.vocab <= kMaxVocab) return;
  throw std::runtime_error("the vocabulary has " + std::to_string(logits.vocab) +
                           " tokens; at most " + std::to_string(kMaxVocab) +
                           " keep sums of weights exact");
}

// Rows of scratch worth having for the counts of penalties: more groups than that gain nothing.
int64_t penalty_counts(int64_t rows) { return rows < 64 ? rows : 64; }

}  // namespace

RTP_LLM_OPERATOR(sample)
void sample(Queue& queue, const SampleArgs& args) {
  check_vocab(args.logits);
  submit(queue, {"sampling_kernel", "sample", args.logits.num_rows, kMaxItems}, args);
}

RTP_LLM_OPERATOR(rejection_sample)
void rejection_sample(Queue& queue, const RejectionSampleArgs& args) {
  check_vocab(args.sample.logits);
  const int64_t rows = args.sample.logits.num_rows;
  submit(queue, {"rejection_kernel", "rejection_sample", rows, kMaxItems}, args);
}

int64_t top_logprobs_scratch(const TopLogprobsArgs& args) {
  return args.logits.num_rows * args.k * int64_t{sizeof(uint64_t)};
}

RTP_LLM_OPERATOR(top_logprobs, scratch)
void top_logprobs(Queue& queue, const TopLogprobsArgs& args, void* scratch) {
  check_vocab(args.logits);
  const RankedLogprobsArgs ranked{args, static_cast<uint64_t*>(scratch)};
  submit(queue, {"sampling_kernel", "top_logprobs", args.logits.num_rows, kMaxItems}, ranked);
}

RTP_LLM_OPERATOR(apply_token_bitmask)
void apply_token_bitmask(Queue& queue, const ApplyTokenBitmaskArgs& args) {
  submit(queue, {"logits_kernel", "apply_token_bitmask", args.num_masks, kMaxItems}, args);
}

int64_t apply_penalties_scratch(const ApplyPenaltiesArgs& args) {
  return penalty_counts(args.logits.num_rows) * args.logits.vocab * int64_t{sizeof(int32_t)};
}

RTP_LLM_OPERATOR(apply_penalties, scratch)
void apply_penalties(Queue& queue, const ApplyPenaltiesArgs& args, void* scratch) {
  const int64_t rows = penalty_counts(args.logits.num_rows);
  fill_zero(queue, scratch, apply_penalties_scratch(args));
  const CountedPenaltyArgs counted{args, static_cast<int32_t*>(scratch), rows};
  submit(queue, {"logits_kernel", "apply_penalties", rows, kMaxItems}, counted);
}

RTP_LLM_OPERATOR(ban_repeated_ngrams)
void ban_repeated_ngrams(Queue& queue, const BanRepeatedNgramsArgs& args) {
  submit(queue, {"logits_kernel", "ban_repeated_ngrams", args.logits.num_rows, kMaxItems}, args);
}

RTP_LLM_OPERATOR(add_logit_bias)
void add_logit_bias(Queue& queue, const AddLogitBiasArgs& args) {
  const int64_t groups = ceil_div(args.size, kMaxItems);
  submit(queue, {"logits_kernel", "add_logit_bias", groups, kMaxItems}, args);
}

int64_t select_beams_scratch(const SelectBeamsArgs& args) {
  return args.num_beams * (args.columns + 1) * int64_t{sizeof(float)};
}

RTP_LLM_OPERATOR(select_beams, scratch)
void select_beams(Queue& queue, const SelectBeamsArgs& args, void* scratch) {
  auto* const totals = static_cast<float*>(scratch);
  auto* const chosen = reinterpret_cast<int32_t*>(totals + args.num_beams * args.columns);
  const ScratchBeamsArgs given{args, totals, chosen};
  submit(queue, {"beams_kernel", "select_beams", args.num_searches, kMaxItems}, given);
}

RTP_LLM_OPERATOR(choose_beams)
void choose_beams(Queue& queue, const ChooseBeamsArgs& args) {
  submit(queue, {"order_beams_kernel", "choose_beams", args.num_searches, items_for(args.k)}, args);
}

int64_t order_beams_scratch(const OrderBeamsArgs& args) {
  return args.num_beams * (args.table_width + 2) * int64_t{sizeof(int32_t)};
}

RTP_LLM_OPERATOR(order_beams, scratch)
void order_beams(Queue& queue, const OrderBeamsArgs& args, void* scratch) {
  const ScratchOrderArgs given{args, static_cast<int32_t*>(scratch)};
  submit(queue, {"order_beams_kernel", "order_beams", args.num_groups, kMaxItems}, given);
}

}  // namespace rtp_llm::xpu
