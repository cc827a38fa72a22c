// SPDX-License-Identifier: Apache-2.0
// A group per row.
#include "rtp_llm/kernels/xpu/sampling/row_draw.h"

namespace rtp_llm::xpu {
namespace {

// log(sum of exponentials of the finite logits), -inf without one.
float log_sum_exp(const Group& group, const LogitRow& row) {
  if (!sycl::isfinite(row.max)) return -kInfinity;
  const uint64_t mass = sum_over(group, row, [&](float logit) { return row.weight(logit); });
  return row.max + sycl::log(static_cast<float>(mass) / static_cast<float>(kFullWeight));
}

float logprob(float logit, float log_sum) {
  return sycl::isfinite(logit) ? sycl::fmax(logit - log_sum, kLeastLogprob) : kLeastLogprob;
}

}  // namespace

void sample(const SampleArgs& args) {
  const Group group = this_group();
  const int64_t index = group_index(group);
  const Choice choice = choose(group, args, index);
  const int32_t token = drawn_token(group, args, index, choice);
  if (item_index(group) > 0) return;
  args.tokens[index] = token;
  args.status[index] = choice.status;
}

void top_logprobs(const RankedLogprobsArgs& ranked) {
  const TopLogprobsArgs& args = ranked.top;
  const Group group = this_group();
  const int64_t index = group_index(group);
  LogitRow row = {args.logits.row(index), args.logits.vocab, 0.0f, 1.0f};
  row.max = key_logit(first_key(group, row));
  const float log_sum = log_sum_exp(group, row);
  if (item_index(group) == 0) {
    const int64_t token = args.tokens[index];
    const bool known = token >= 0 && token < row.vocab;
    args.chosen[index] = known ? logprob(row.logits[token], log_sum) : kLeastLogprob;
  }
  if (args.k == 0) return;
  uint64_t* const keys = ranked.keys + index * args.k;
  collect_first(group, row, args.k, keys);
  sycl::group_barrier(group);
  for_items(group, args.k, [&](int64_t i) {
    int64_t rank = index * args.k;
    for (int64_t j = 0; j < args.k; ++j) rank += keys[j] < keys[i] ? 1 : 0;
    args.values[rank] = logprob(key_logit(keys[i]), log_sum);
    args.ids[rank] = key_index(keys[i]);
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(sample, rtp_llm::SampleArgs) { rtp_llm::xpu::sample(args); }
RTP_LLM_XPU_ENTRY(top_logprobs, rtp_llm::xpu::RankedLogprobsArgs) {
  rtp_llm::xpu::top_logprobs(args);
}
