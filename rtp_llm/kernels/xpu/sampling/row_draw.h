// SPDX-License-Identifier: Apache-2.0
// Drawing a token from a row of logits. The whole group calls every function here together.
#pragma once

#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/xpu/sampling/sampling_row.h"

namespace rtp_llm::xpu {

constexpr uint64_t kFullWeight = uint64_t{1} << kWeightBits;

// ceil(share * whole), for 0 <= share < 1.
inline uint64_t ceil_share(float share, uint64_t whole) {
  // 64 binary places hold a float32 exactly, unless it is so small that it rounds to one token.
  const auto places = static_cast<uint64_t>(share * 0x1p32f * 0x1p32f);
  return sycl::mul_hi(places, whole) + (places * whole != 0 ? 1 : 0);
}

// Keeps the first k tokens.
inline void keep_first(const Group& group, const LogitRow& row, int64_t k, Kept* kept) {
  const auto count = [](float) { return uint64_t{1}; };
  const Crossing last = find_crossing(group, row, static_cast<uint64_t>(k - 1), count);
  keep_up_to(group, row, last.order, k - 1 - static_cast<int64_t>(last.before), kept);
}

// The sum of weight(index) over `size` entries.
template <class Weight>
uint64_t mass_of(const Group& group, int64_t size, Weight&& weight) {
  uint64_t mass = 0;
  for_items(group, size, [&](int64_t i) { mass += weight(i); });
  return group_sum(group, mass);
}

// Keeps the smallest prefix that has at least `share` of the mass that is left, and a token.
inline void keep_mass(const Group& group, const LogitRow& row, float share, Kept* kept) {
  const uint64_t mass = mass_of(group, row.vocab, [&](int64_t i) { return kept->weight(row, i); });
  const uint64_t target = excess_over(ceil_share(sycl::fmax(share, 0.0f), mass), 1);
  const Crossing last =
      find_crossing(group, row, target, [&](float logit) { return row.weight(logit); });
  const uint64_t rank = (target - last.before) / row.weight(logit_of(last.order));
  keep_up_to(group, row, last.order, static_cast<int64_t>(rank), kept);
}

// Draws one of `size` entries in the order of indices, so that ties in weight do not matter: each
// item has neighbouring entries. `size` itself if all weights are 0.
template <class Weight>
int64_t draw(const Group& group, int64_t size, uint64_t bits, Weight&& weight) {
  const ItemRange own = item_range(group, size);
  uint64_t mass = 0;
  for (int64_t i = own.begin; i < own.end; ++i) mass += weight(i);
  // A fraction with 53 random bits, times all of the mass.
  const uint64_t target = sycl::mul_hi(bits & ~uint64_t{0x7ff}, group_sum(group, mass));
  uint64_t before = sycl::exclusive_scan_over_group(group, mass, sycl::plus<uint64_t>());
  int64_t found = size;
  if (target >= before && target - before < mass) {
    for (int64_t i = own.begin; i < own.end && found == size; ++i) {
      before += weight(i);
      if (target < before) found = i;
    }
  }
  return group_min(group, found);
}

// Whether the row has a NaN or +inf.
inline bool is_spoilt(const Group& group, const LogitRow& row) {
  bool spoilt = false;
  for_items(group, row.vocab, [&](int64_t i) {
    spoilt = spoilt || sycl::isnan(row.logits[i]) || row.logits[i] == kInfinity;
  });
  return sycl::any_of_group(group, spoilt);
}

// What a row is sampled from: the tokens that are kept, or without a draw `token`.
struct Choice {
  LogitRow row;
  Kept kept;
  int32_t token;
  RowStatus status;
  bool random;

  uint64_t weight(int64_t i) const { return kept.weight(row, i); }
};

inline Choice choose(const Group& group, const SampleArgs& args, int64_t index) {
  Choice choice = {{args.logits.row(index), args.logits.vocab, 0.0f, args.temperature[index]}, {}};
  LogitRow& row = choice.row;
  const uint64_t first = first_key(group, row);
  row.max = key_logit(first);
  choice.token = sycl::isfinite(row.max) ? key_index(first) : 0;
  const bool spoilt = is_spoilt(group, row);
  choice.status = spoilt ? kNotFinite : sycl::isfinite(row.max) ? kDrawn : kAllBanned;
  const int64_t top_k = args.top_k[index];
  choice.random = choice.status == kDrawn && row.temperature > 0.0f && top_k != 1;
  if (!choice.random) return choice;
  const float top_p = args.top_p[index];
  const float min_p = args.min_p[index];
  if (top_k > 0 && top_k < row.vocab) keep_first(group, row, top_k, &choice.kept);
  if (top_p < 1.0f) keep_mass(group, row, top_p, &choice.kept);
  if (min_p > 0.0f) {
    const float share = sycl::fmin(min_p, 1.0f);
    choice.kept.least = static_cast<uint64_t>(share * static_cast<float>(kFullWeight));
  }
  return choice;
}

// The token of `sample`.
inline int32_t drawn_token(const Group& group, const SampleArgs& args, int64_t index,
                           const Choice& choice) {
  if (!choice.random) return choice.token;
  const uint64_t bits = philox_bits(static_cast<uint64_t>(args.seeds[index]),
                                    static_cast<uint64_t>(args.steps[index]));
  const auto weight = [&](int64_t i) { return choice.weight(i); };
  return static_cast<int32_t>(draw(group, choice.row.vocab, bits, weight));
}

}  // namespace rtp_llm::xpu
