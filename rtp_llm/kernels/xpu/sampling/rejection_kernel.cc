// SPDX-License-Identifier: Apache-2.0
// Rejection sampling, a group per row. Probabilities are integers, multiples of 2^-62: their
// differences and the sums of these are exact, and equal logits have equal probabilities.
#include "rtp_llm/kernels/common/sampling/rejection.h"
#include "rtp_llm/kernels/xpu/sampling/row_draw.h"

namespace rtp_llm::xpu {
namespace {

// Weights as multiples of 2^-62 of their sum.
class Shares {
 public:
  // `mass` is the sum of a row's weights: at least kFullWeight, that of its most likely token, and
  // below 2^63.
  explicit Shares(uint64_t mass) {
    uint64_t rest = kFullWeight >> 1;
    for (int place = 0; place < 64; ++place) {
      rest <<= 1;
      rate_ = (rate_ << 1) | (rest >= mass ? 1 : 0);
      if (rest >= mass) rest -= mass;
    }
  }

  uint64_t of(uint64_t weight) const { return sycl::mul_hi(weight << (63 - kWeightBits), rate_); }

 private:
  uint64_t rate_ = 0;  // 2^(63 + kWeightBits) / mass
};

// The distributions of a row and of its draft.
struct BothRows {
  const RejectionSampleArgs& args;
  const Choice& target;
  const LogitRow& draft;
  const Shares target_shares, draft_shares;

  uint64_t p(int64_t i) const { return target_shares.of(target.weight(i)); }
  uint64_t q(int64_t i) const {
    const int64_t column = args.column(i);
    if (column < 0 || column >= draft.vocab) return 0;
    return draft_shares.of(draft.weight(draft.at(column)));
  }
  uint64_t excess(int64_t i) const { return excess_over(p(i), q(i)); }
};

// Whether the draft was a random choice: its row has no NaN, no +inf and something finite.
bool read_draft(const Group& group, LogitRow* row) {
  row->max = key_logit(first_key(group, *row));
  return !is_spoilt(group, *row) && sycl::isfinite(row->max);
}

// The draft, or what is drawn instead; the vocabulary's size where rounding leaves nothing.
int64_t verify(const Group& group, const BothRows& both, int64_t index) {
  const SampleArgs& sample = both.args.sample;
  const auto seed = static_cast<uint64_t>(sample.seeds[index]);
  const auto step = static_cast<uint64_t>(sample.steps[index]);
  // philox_open_uniform in 64 binary places.
  const uint64_t bits = philox_bits(seed, step + kAcceptSteps);
  const uint64_t uniform = (bits & ~uint64_t{0xfff}) | 0x800;
  const int64_t token = both.args.drafts[index];
  if (sycl::mul_hi(uniform, both.q(token)) < both.p(token)) return token;
  return draw(group, sample.logits.vocab, philox_bits(seed, step),
              [&](int64_t i) { return both.excess(i); });
}

}  // namespace

void rejection_sample(const RejectionSampleArgs& args) {
  const Group group = this_group();
  const int64_t index = group_index(group), vocab = args.sample.logits.vocab;
  const Choice target = choose(group, args.sample, index);
  LogitRow draft = {args.draft_logits.row(index), args.draft_logits.vocab, 0.0f,
                    target.row.temperature};
  const bool drafted = args.drafts[index] >= 0 && args.drafts[index] < vocab;
  int64_t token = vocab;
  if (target.random && drafted && read_draft(group, &draft)) {
    const auto kept = [&](int64_t i) { return target.weight(i); };
    const auto all = [&](float logit) { return draft.weight(logit); };
    const BothRows both = {args, target, draft, Shares(mass_of(group, vocab, kept)),
                           Shares(sum_over(group, draft, all))};
    token = verify(group, both, index);
  }
  if (token == vocab) token = drawn_token(group, args.sample, index, target);
  if (item_index(group) > 0) return;
  args.sample.tokens[index] = static_cast<int32_t>(token);
  args.sample.status[index] = target.status;
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(rejection_sample, rtp_llm::RejectionSampleArgs) {
  rtp_llm::xpu::rejection_sample(args);
}
