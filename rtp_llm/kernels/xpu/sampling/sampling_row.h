// SPDX-License-Identifier: Apache-2.0
// A row of logits as weights in order, without sorting it: what lies before a point of the order is
// summed up over the whole row, and the point where a sum is reached is searched digit by digit.
//
// The whole group calls every function here together, and all items get the same results.
#pragma once

#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

namespace rtp_llm::xpu {

// Ascending numbers for descending logits; 0.0 and -0.0 are equal.
inline uint32_t order_of(float logit) {
  const auto bits = sycl::bit_cast<uint32_t>(logit + 0.0f);
  return (bits >> 31) != 0 ? bits : ~bits & 0x7fffffffU;
}
inline float logit_of(uint32_t order) {
  return sycl::bit_cast<float>((order >> 31) != 0 ? order : ~order & 0x7fffffffU);
}

// max(a - b, 0) for weights and their sums, which have at most 63 bits. Written with signed
// numbers: the compiler makes a saturating subtraction of unsigned ones, which SPIR-V does not
// have.
inline uint64_t excess_over(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(
      std::max(static_cast<int64_t>(a) - static_cast<int64_t>(b), int64_t{0}));
}

struct LogitRow {
  const float* logits;
  int64_t vocab;
  float max;
  float temperature;

  // What is not finite counts as banned.
  float at(int64_t index) const {
    return sycl::isfinite(logits[index]) ? logits[index] : -kInfinity;
  }

  // 2^kWeightBits for the most likely token; 0 for what is banned.
  uint64_t weight(float logit) const {
    const float share = sycl::exp((logit - max) / temperature);
    return static_cast<uint64_t>(share * static_cast<float>(uint64_t{1} << kWeightBits) + 0.5f);
  }
};

// The sum of measure(logit) over the row.
template <class Measure>
uint64_t sum_over(const Group& group, const LogitRow& row, Measure&& measure) {
  uint64_t sum = 0;
  for_items(group, row.vocab, [&](int64_t i) { sum += measure(row.at(i)); });
  return group_sum(group, sum);
}

// A point in the order: tokens of the logit `order`, and the measure of all tokens before them.
struct Crossing {
  uint32_t order;
  uint64_t before;
};

constexpr int kDigitBits = 4;
constexpr int kDigits = 1 << kDigitBits;

// The first logit in order at which the measure of it and all before exceeds `target`, which is
// less than the measure of the row.
template <class Measure>
Crossing find_crossing(const Group& group, const LogitRow& row, uint64_t target,
                       Measure&& measure) {
  Crossing found = {0, 0};
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    uint64_t sums[kDigits] = {};
    for_items(group, row.vocab, [&](int64_t i) {
      const float logit = row.at(i);
      const uint32_t digit = (order_of(logit) - found.order) >> shift;
      if (digit >= kDigits) return;
      const uint64_t value = measure(logit);
#pragma unroll
      for (uint32_t d = 0; d < kDigits; ++d) sums[d] += d == digit ? value : 0;
    });
    uint32_t digit = 0;
    for (uint32_t d = 0; d < kDigits; ++d) {
      const uint64_t sum = group_sum(group, sums[d]);
      if (digit != d) continue;
      if (found.before + sum > target || d + 1 == kDigits) continue;
      found.before += sum;
      digit = d + 1;
    }
    found.order += digit << shift;
  }
  return found;
}

// The neighbouring tokens of a vocabulary that the calling item has.
struct ItemRange {
  int64_t begin, end;
};
inline ItemRange item_range(const Group& group, int64_t vocab) {
  const int64_t items = group_items(group);
  const int64_t size = (vocab + items - 1) / items;
  const int64_t begin = std::min(item_index(group) * size, vocab);
  return {begin, std::min(begin + size, vocab)};
}

// The index of the rank-th token of logit `order`, counted from 0.
inline int64_t index_of(const Group& group, const LogitRow& row, uint32_t order, int64_t rank) {
  const ItemRange own = item_range(group, row.vocab);
  int64_t count = 0;
  for (int64_t i = own.begin; i < own.end; ++i) count += order_of(row.at(i)) == order ? 1 : 0;
  int64_t rest = rank - sycl::exclusive_scan_over_group(group, count, sycl::plus<int64_t>());
  int64_t found = row.vocab;
  for (int64_t i = own.begin; i < own.end && rest >= 0; ++i) {
    if (order_of(row.at(i)) == order && rest-- == 0) found = i;
  }
  return group_min(group, found);
}

// What filters leave of a row: the tokens up to `index` of logit `order`, of weight `least` or
// more.
struct Kept {
  uint32_t order = 0xffffffffU;
  int64_t index = 0;
  uint64_t least = 0;

  uint64_t weight(const LogitRow& row, int64_t i) const {
    const float logit = row.at(i);
    const uint32_t own = order_of(logit);
    if (own > order || (own == order && i > index)) return 0;
    const uint64_t weight = row.weight(logit);
    return weight >= least ? weight : 0;
  }
};

// Drops the tokens after the rank-th one of logit `order`.
inline void keep_up_to(const Group& group, const LogitRow& row, uint32_t order, int64_t rank,
                       Kept* kept) {
  kept->index = index_of(group, row, order, rank);
  kept->order = order;
}

// A token, ascending in the row's order: logit descending, then index ascending.
inline uint64_t key_of(uint32_t order, int64_t index) {
  return (uint64_t{order} << 32) | static_cast<uint64_t>(index);
}
inline float key_logit(uint64_t key) { return logit_of(static_cast<uint32_t>(key >> 32)); }
inline int32_t key_index(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffU); }

inline uint64_t first_key(const Group& group, const LogitRow& row) {
  uint64_t first = ~uint64_t{0};
  for_items(group, row.vocab,
            [&](int64_t i) { first = std::min(first, key_of(order_of(row.at(i)), i)); });
  return group_min(group, first);
}

// The keys of the first `count` tokens, at least one, in any order.
inline void collect_first(const Group& group, const LogitRow& row, int64_t count, uint64_t* keys) {
  const auto last = static_cast<uint64_t>(count - 1);
  const Crossing at = find_crossing(group, row, last, [](float) { return uint64_t{1}; });
  const auto rank = static_cast<int64_t>(last - at.before);
  const uint64_t last_key = key_of(at.order, index_of(group, row, at.order, rank));
  int64_t found = 0;
  for_items(group, row.vocab,
            [&](int64_t i) { found += key_of(order_of(row.at(i)), i) <= last_key ? 1 : 0; });
  int64_t place = sycl::exclusive_scan_over_group(group, found, sycl::plus<int64_t>());
  for_items(group, row.vocab, [&](int64_t i) {
    const uint64_t key = key_of(order_of(row.at(i)), i);
    if (key <= last_key) keys[place++] = key;
  });
}

}  // namespace rtp_llm::xpu
