// SPDX-License-Identifier: Apache-2.0
// A group per row.
#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/xpu/sampling/sampling_row.h"

namespace rtp_llm::xpu {
namespace {

constexpr uint64_t kFullWeight = uint64_t{1} << kWeightBits;

// ceil(share * whole), for 0 <= share < 1.
uint64_t ceil_share(float share, uint64_t whole) {
  // 64 binary places hold a float32 exactly, unless it is so small that it rounds to one token.
  const auto places = static_cast<uint64_t>(share * 0x1p32f * 0x1p32f);
  return sycl::mul_hi(places, whole) + (places * whole != 0 ? 1 : 0);
}

// Keeps the first k tokens.
void keep_first(const Group& group, const LogitRow& row, int64_t k, Kept* kept) {
  const auto count = [](float) { return uint64_t{1}; };
  const Crossing last = find_crossing(group, row, static_cast<uint64_t>(k - 1), count);
  keep_up_to(group, row, last.order, k - 1 - static_cast<int64_t>(last.before), kept);
}

// Keeps the smallest prefix that has at least `share` of the mass that is left, and a token.
void keep_mass(const Group& group, const LogitRow& row, float share, Kept* kept) {
  uint64_t mass = 0;
  for_items(group, row.vocab, [&](int64_t i) { mass += kept->weight(row, i); });
  mass = group_sum(group, mass);
  const uint64_t wanted = std::max(ceil_share(sycl::fmax(share, 0.0f), mass), uint64_t{1});
  const Crossing last =
      find_crossing(group, row, wanted - 1, [&](float logit) { return row.weight(logit); });
  const uint64_t rank = (wanted - 1 - last.before) / row.weight(logit_of(last.order));
  keep_up_to(group, row, last.order, static_cast<int64_t>(rank), kept);
}

// Draws in the order of indices, so that ties in weight do not matter: each item has neighbouring
// tokens.
int32_t draw(const Group& group, const LogitRow& row, const Kept& kept, uint64_t seed,
             uint64_t step) {
  const PhiloxBlock block =
      philox4x32({{static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), 0, 0}},
                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{block.word[1]} << 32) | block.word[0];
  const ItemRange own = item_range(group, row.vocab);
  uint64_t mass = 0;
  for (int64_t i = own.begin; i < own.end; ++i) mass += kept.weight(row, i);
  // A fraction with 53 random bits, times all of the mass.
  const uint64_t target = sycl::mul_hi(bits & ~uint64_t{0x7ff}, group_sum(group, mass));
  uint64_t before = sycl::exclusive_scan_over_group(group, mass, sycl::plus<uint64_t>());
  int64_t found = row.vocab;
  if (target >= before && target - before < mass) {
    for (int64_t i = own.begin; i < own.end && found == row.vocab; ++i) {
      before += kept.weight(row, i);
      if (target < before) found = i;
    }
  }
  return static_cast<int32_t>(group_min(group, found));
}

// Whether the row has a NaN or +inf.
bool is_spoilt(const Group& group, const LogitRow& row) {
  bool spoilt = false;
  for_items(group, row.vocab, [&](int64_t i) {
    spoilt = spoilt || sycl::isnan(row.logits[i]) || row.logits[i] == kInfinity;
  });
  return sycl::any_of_group(group, spoilt);
}

int32_t sample_row(const Group& group, const SampleArgs& args, int64_t index, LogitRow row,
                   int32_t arg_max) {
  row.temperature = args.temperature[index];
  const int64_t top_k = args.top_k[index];
  if (!(row.temperature > 0.0f) || top_k == 1) return arg_max;
  const float top_p = args.top_p[index];
  const float min_p = args.min_p[index];
  Kept kept;
  if (top_k > 0 && top_k < row.vocab) keep_first(group, row, top_k, &kept);
  if (top_p < 1.0f) keep_mass(group, row, top_p, &kept);
  if (min_p > 0.0f) {
    const float share = sycl::fmin(min_p, 1.0f);
    kept.least = static_cast<uint64_t>(share * static_cast<float>(kFullWeight));
  }
  return draw(group, row, kept, static_cast<uint64_t>(args.seeds[index]),
              static_cast<uint64_t>(args.steps[index]));
}

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
  LogitRow row = {args.logits.row(index), args.logits.vocab, 0.0f, 1.0f};
  const uint64_t first = first_key(group, row);
  row.max = key_logit(first);
  const bool spoilt = is_spoilt(group, row);
  const bool ok = !spoilt && sycl::isfinite(row.max);
  int32_t token = sycl::isfinite(row.max) ? key_index(first) : 0;
  if (ok) token = sample_row(group, args, index, row, token);
  if (item_index(group) > 0) return;
  args.tokens[index] = token;
  args.status[index] = spoilt ? kNotFinite : ok ? kDrawn : kAllBanned;
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
