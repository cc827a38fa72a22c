// SPDX-License-Identifier: Apache-2.0
// Changes of logits before the draw: a few logits of each row, or a mask.
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

namespace rtp_llm::xpu {
namespace {

template <class T>
using Atomic = sycl::atomic_ref<T, sycl::memory_order::relaxed, sycl::memory_scope::device>;

bool known(int32_t token, int64_t vocab) { return token >= 0 && token < vocab; }

// What a wrong cu_tokens cannot lead out of.
struct Range {
  int64_t begin, end;
};

Range range_of(const TokenHistory& history, int64_t row) {
  const int64_t end = std::min<int64_t>(history.cu_tokens[row + 1], history.size);
  return {std::max<int64_t>(history.cu_tokens[row], 0), end};
}

void penalize_row(const Group& group, const ApplyPenaltiesArgs& args, int64_t row,
                  int32_t* counts) {
  const float repetition = args.repetition[row];
  const float presence = args.presence[row];
  const float frequency = args.frequency[row];
  const Range range = range_of(args.history, row);
  const int32_t* const tokens = args.history.tokens + range.begin;
  const int64_t size = std::max<int64_t>(range.end - range.begin, 0);
  const int64_t generated = std::clamp<int64_t>(args.output_lens[row], 0, size);
  const int64_t vocab = args.logits.vocab;
  for_items(group, generated, [&](int64_t i) {
    const int32_t token = tokens[size - generated + i];
    if (known(token, vocab)) Atomic<int32_t>(counts[token]).fetch_add(1);
  });
  sycl::group_barrier(group);
  float* const logits = args.logits.row(row);
  // The item that takes a token's count changes its logit, and leaves -1 for the others.
  for_items(group, size, [&](int64_t i) {
    if (!known(tokens[i], vocab)) return;
    const int32_t count = Atomic<int32_t>(counts[tokens[i]]).exchange(-1);
    if (count < 0) return;
    float logit = logits[tokens[i]];
    logit = logit < 0.0f ? logit * repetition : logit / repetition;
    if (count > 0) logit = logit - presence - frequency * static_cast<float>(count);
    logits[tokens[i]] = logit;
  });
  sycl::group_barrier(group);
  for_items(group, size, [&](int64_t i) {
    if (known(tokens[i], vocab)) Atomic<int32_t>(counts[tokens[i]]).store(0);
  });
  sycl::group_barrier(group);
}

// Whether the n - 1 tokens at `at` are the last ones of the history.
bool is_suffix(const int32_t* at, const int32_t* end, int64_t n) {
  for (int64_t i = 0; i + 1 < n; ++i) {
    if (at[i] != end[i - (n - 1)]) return false;
  }
  return true;
}

}  // namespace

// A group per mask.
void apply_token_bitmask(const ApplyTokenBitmaskArgs& args) {
  const Group group = this_group();
  const int64_t index = group_index(group);
  if (!known(args.rows[index], args.logits.num_rows)) return;
  const uint32_t* const mask = args.masks + index * args.words();
  float* const logits = args.logits.row(args.rows[index]);
  for_items(group, args.logits.vocab, [&](int64_t token) {
    if ((mask[token / 32] >> (token % 32) & 1) == 0) logits[token] = -kInfinity;
  });
}

// A group per row of counts, with every num_counts-th row.
void apply_penalties(const CountedPenaltyArgs& args) {
  const Group group = this_group();
  const MutableRows& logits = args.penalties.logits;
  int32_t* const counts = args.counts + group_index(group) * logits.vocab;
  for (int64_t row = group_index(group); row < logits.num_rows; row += args.num_counts) {
    penalize_row(group, args.penalties, row, counts);
  }
}

// A group per row.
void ban_repeated_ngrams(const BanRepeatedNgramsArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  const int64_t n = args.ngram_size[row];
  const Range range = range_of(args.history, row);
  if (n < 1 || range.end - range.begin < n) return;
  const int32_t* const tokens = args.history.tokens;
  float* const logits = args.logits.row(row);
  for_items(group, range.end - range.begin - n + 1, [&](int64_t i) {
    const int32_t* const at = tokens + range.begin + i;
    const int32_t next = at[n - 1];
    if (!known(next, args.logits.vocab) || !is_suffix(at, tokens + range.end, n)) return;
    Atomic<float>(logits[next]).store(-kInfinity);
  });
}

// An item per change.
void add_logit_bias(const AddLogitBiasArgs& args) {
  const Group group = this_group();
  const int64_t i = group_index(group) * group_items(group) + item_index(group);
  if (i >= args.size || !known(args.ids[i], args.logits.vocab)) return;
  if (!known(args.rows[i], args.logits.num_rows)) return;
  Atomic<float>(args.logits.row(args.rows[i])[args.ids[i]]).fetch_add(args.values[i]);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(apply_token_bitmask, rtp_llm::ApplyTokenBitmaskArgs) {
  rtp_llm::xpu::apply_token_bitmask(args);
}
RTP_LLM_XPU_ENTRY(apply_penalties, rtp_llm::xpu::CountedPenaltyArgs) {
  rtp_llm::xpu::apply_penalties(args);
}
RTP_LLM_XPU_ENTRY(ban_repeated_ngrams, rtp_llm::BanRepeatedNgramsArgs) {
  rtp_llm::xpu::ban_repeated_ngrams(args);
}
RTP_LLM_XPU_ENTRY(add_logit_bias, rtp_llm::AddLogitBiasArgs) { rtp_llm::xpu::add_logit_bias(args); }
