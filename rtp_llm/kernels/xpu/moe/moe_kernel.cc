// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/moe/moe.h"

namespace rtp_llm::xpu {
namespace {

using sycl::ext::oneapi::experimental::work_group_static;

constexpr int64_t kNone = INT64_MAX;

// Of one token: what weights are made of, what chooses, and what may still be chosen; then the same
// of groups of experts.
work_group_static<float[kMaxExperts]> scores;
work_group_static<float[kMaxExperts]> choice;
work_group_static<bool[kMaxExperts]> open_experts;
work_group_static<float[kMaxExperts]> ratings;
work_group_static<bool[kMaxExperts]> open_groups;
// Of sort_by_expert: the next place of every expert, and of what names none.
work_group_static<int32_t[kMaxExperts + 1]> next_place;

void put(void* ids, bool wide, int64_t at, int64_t id) {
  if (wide) {
    static_cast<int64_t*>(ids)[at] = id;
  } else {
    static_cast<int32_t*>(ids)[at] = static_cast<int32_t>(id);
  }
}

// A number that is none loses against every other.
float comparable(float value) { return sycl::isnan(value) ? -kInfinity : value; }

// The first of the best of [begin, end) that is open, and closes it. Every item gets it.
int64_t take_best(const Group& group, int64_t begin, int64_t end, const float* values, bool* open) {
  float best = -kInfinity;
  int64_t at = kNone;
  for_items(group, end - begin, [&](int64_t i) {
    const float value = comparable(values[begin + i]);
    if (open[begin + i] && (at == kNone || value > best)) {
      best = value;
      at = begin + i;
    }
  });
  const float top = group_max(group, best);
  const int64_t first = group_min(group, best == top ? at : kNone);
  if (item_index(group) == 0 && first != kNone) open[first] = false;
  sycl::group_barrier(group);
  return first;
}

void score(const Group& group, const TopkArgs& args, const float* logits) {
  float most = -kInfinity, sum = 0.0f;
  for_items(group, args.experts, [&](int64_t e) { most = sycl::fmax(most, logits[e]); });
  most = group_max(group, most);
  for_items(group, args.experts, [&](int64_t e) {
    scores[e] = args.sigmoid ? 1.0f / (1.0f + sycl::exp(-logits[e])) : sycl::exp(logits[e] - most);
    sum += scores[e];
  });
  sum = args.sigmoid ? 1.0f : group_sum(group, sum);
  for_items(group, args.experts, [&](int64_t e) {
    scores[e] /= sum;
    choice[e] = scores[e] + (args.bias == nullptr ? 0.0f : args.bias[e]);
    open_experts[e] = true;
  });
  sycl::group_barrier(group);
}

// Closes the experts of all groups but the best.
void keep_best_groups(const Group& group, const TopkArgs& args) {
  if (args.top_groups == args.groups) return;
  const int64_t size = args.experts / args.groups;
  for (int64_t g = 0; g < args.groups; ++g) {
    float rating = 0.0f;
    for (int i = 0; i < args.group_best; ++i) {
      rating += choice[take_best(group, g * size, (g + 1) * size, &choice[0], &open_experts[0])];
    }
    if (item_index(group) == 0) {
      ratings[g] = rating;
      open_groups[g] = true;
    }
  }
  for_items(group, args.experts, [&](int64_t e) { open_experts[e] = false; });
  sycl::group_barrier(group);
  for (int i = 0; i < args.top_groups; ++i) {
    const int64_t best = take_best(group, 0, args.groups, &ratings[0], &open_groups[0]);
    for_items(group, size, [&](int64_t e) { open_experts[best * size + e] = true; });
  }
  sycl::group_barrier(group);
}

}  // namespace

// A group per token.
void choose(const TopkArgs& args) {
  const Group group = this_group();
  const int64_t token = group_index(group);
  score(group, args, args.logits + token * args.logits_stride);
  keep_best_groups(group, args);
  float* const weights = args.weights + token * args.k;
  float sum = 0.0f;
  for (int j = 0; j < args.k; ++j) {
    const int64_t best = take_best(group, 0, args.experts, &choice[0], &open_experts[0]);
    sum += scores[best];
    if (item_index(group) == 0) {
      put(args.ids, args.wide_ids, token * args.k + j, best);
      weights[j] = scores[best];
    }
  }
  // A sum of zero would give numbers that are none; all weights are zero then.
  const float divisor = args.renormalize ? sum : 1.0f;
  const float scale = divisor > 0.0f ? args.scaling / divisor : args.scaling;
  if (item_index(group) != 0) return;
  for (int j = 0; j < args.k; ++j) weights[j] *= scale;
}

void balance(const FakeBalanceExpertArgs& args) {
  const Group group = this_group();
  const int64_t i = group_index(group) * group_items(group) + item_index(group);
  if (i >= args.count) return;
  const int64_t rank = (args.first_rank + i % args.ranks) % args.ranks;
  const int64_t expert = (args.first + i / args.ranks) % args.local;
  put(args.ids, args.wide_ids, i, rank * args.local + expert);
  args.scales[i] = 1.0f;
}

// An item per expert, and one for what names none: each reads all entries and takes its own.
void sort(const SortByExpertArgs& args) {
  const Group group = this_group();
  const auto bucket = [&](int64_t i) {
    const int32_t id = args.ids[i];
    return id >= 0 && id < args.experts ? int64_t{id} : int64_t{args.experts};
  };
  for_items(group, args.experts + 1, [&](int64_t e) {
    int32_t count = 0;
    for (int64_t i = 0; i < args.count; ++i) count += bucket(i) == e ? 1 : 0;
    next_place[e] = count;
  });
  sycl::group_barrier(group);
  if (item_index(group) == 0) {
    int32_t first = 0;
    for (int e = 0; e <= args.experts; ++e) {
      const int32_t count = next_place[e];
      args.offsets[e] = first;
      next_place[e] = first;
      first += count;
    }
  }
  sycl::group_barrier(group);
  for_items(group, args.experts + 1, [&](int64_t e) {
    int32_t place = next_place[e];
    for (int64_t i = 0; i < args.count; ++i) {
      if (bucket(i) != e) continue;
      args.rows[place] = static_cast<int32_t>(i);
      args.places[i] = e < args.experts ? place : -1;
      ++place;
    }
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(select_experts, rtp_llm::TopkArgs) { rtp_llm::xpu::choose(args); }
RTP_LLM_XPU_ENTRY(fake_balance_expert, rtp_llm::FakeBalanceExpertArgs) {
  rtp_llm::xpu::balance(args);
}
RTP_LLM_XPU_ENTRY(sort_by_expert, rtp_llm::SortByExpertArgs) { rtp_llm::xpu::sort(args); }
