// SPDX-License-Identifier: Apache-2.0
// Which experts a token goes to, and the order in which experts take their tokens.
#include "rtp_llm/kernels/common/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {
namespace {

// The scores of one token, and which experts may still be chosen.
struct Row {
  explicit Row(int experts)
      : scores(static_cast<size_t>(experts)), choice(scores.size()), open(scores.size()) {}

  std::vector<float> scores;  // what weights are made of
  std::vector<float> choice;  // what chooses
  std::vector<char> open;
};

void score(const TopkArgs& args, const float* logits, Row* row) {
  const auto experts = static_cast<size_t>(args.experts);
  float sum = 1.0F;
  if (args.sigmoid) {
    for (size_t e = 0; e < experts; ++e) row->scores[e] = 1.0F / (1.0F + std::exp(-logits[e]));
  } else {
    const float most = *std::max_element(logits, logits + experts);
    sum = 0.0F;
    for (size_t e = 0; e < experts; ++e) sum += row->scores[e] = std::exp(logits[e] - most);
  }
  for (size_t e = 0; e < experts; ++e) {
    row->scores[e] /= sum;
    row->choice[e] = row->scores[e] + (args.bias == nullptr ? 0.0F : args.bias[e]);
    row->open[e] = 1;
  }
}

// The first of the best of [begin, end) that is open, and closes it; -1 when none is. A number that
// is none loses against every other.
int take_best(int begin, int end, const std::vector<float>& choice, std::vector<char>* open) {
  int best = -1;
  for (int e = begin; e < end; ++e) {
    const auto at = static_cast<size_t>(e);
    if ((*open)[at] == 0) continue;
    const bool better = best < 0 || choice[at] > choice[static_cast<size_t>(best)] ||
                        (std::isnan(choice[static_cast<size_t>(best)]) && !std::isnan(choice[at]));
    if (better) best = e;
  }
  if (best >= 0) (*open)[static_cast<size_t>(best)] = 0;
  return best;
}

// Closes the experts of all groups but the best.
void keep_best_groups(const TopkArgs& args, Row* row) {
  if (args.top_groups == args.groups) return;
  const int size = args.experts / args.groups;
  std::vector<float> of_group(static_cast<size_t>(args.groups));
  for (int group = 0; group < args.groups; ++group) {
    float sum = 0.0F;
    for (int i = 0; i < args.group_best; ++i) {
      const int best = take_best(group * size, (group + 1) * size, row->choice, &row->open);
      sum += row->choice[static_cast<size_t>(best)];
    }
    of_group[static_cast<size_t>(group)] = sum;
  }
  std::fill(row->open.begin(), row->open.end(), 0);
  std::vector<char> groups(of_group.size(), 1);
  for (int i = 0; i < args.top_groups; ++i) {
    const int group = take_best(0, args.groups, of_group, &groups);
    std::fill_n(row->open.begin() + int64_t{group} * size, size, 1);
  }
}

void put(void* ids, bool wide, int64_t at, int64_t id) {
  if (wide) {
    static_cast<int64_t*>(ids)[at] = id;
  } else {
    static_cast<int32_t*>(ids)[at] = static_cast<int32_t>(id);
  }
}

void select_experts(const TopkArgs& args, int64_t begin, int64_t end) {
  Row row(args.experts);
  for (int64_t t = begin; t < end; ++t) {
    score(args, args.logits + t * args.logits_stride, &row);
    keep_best_groups(args, &row);
    float* const weights = args.weights + t * args.k;
    float sum = 0.0F;
    for (int j = 0; j < args.k; ++j) {
      const int best = take_best(0, args.experts, row.choice, &row.open);
      put(args.ids, args.wide_ids, t * args.k + j, best);
      weights[j] = row.scores[static_cast<size_t>(best)];
      sum += weights[j];
    }
    const float divisor = args.renormalize ? sum : 1.0F;
    // A sum of zero would give numbers that are none; all weights are zero then.
    const float scale = divisor > 0.0F ? args.scaling / divisor : args.scaling;
    for (int j = 0; j < args.k; ++j) weights[j] *= scale;
  }
}

}  // namespace

// A score costs about as much as 40 bytes of traffic: its exponential.
RTP_LLM_OPERATOR(select_topk, args.tokens, grain_rows(args.experts * (40 + args.k * int64_t{4})))
void select_topk(const SelectTopkArgs& args, int64_t begin, int64_t end) {
  select_experts(args, begin, end);
}

RTP_LLM_OPERATOR(group_topk, args.tokens, grain_rows(args.experts * (40 + args.k * int64_t{4})))
void group_topk(const GroupTopkArgs& args, int64_t begin, int64_t end) {
  select_experts(args, begin, end);
}

RTP_LLM_OPERATOR(fake_balance_expert)
void fake_balance_expert(const FakeBalanceExpertArgs& args, const ParallelFor&) {
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t rank = (args.first_rank + i % args.ranks) % args.ranks;
    const int64_t expert = (args.first + i / args.ranks) % args.local;
    put(args.ids, args.wide_ids, i, rank * args.local + expert);
    args.scales[i] = 1.0F;
  }
}

RTP_LLM_OPERATOR(sort_by_expert)
void sort_by_expert(const SortByExpertArgs& args, const ParallelFor&) {
  const auto experts = static_cast<size_t>(args.experts);
  // The last bucket takes what names no expert.
  const auto bucket = [&](int64_t i) {
    const int32_t id = args.ids[i];
    return id >= 0 && id < args.experts ? static_cast<size_t>(id) : experts;
  };
  std::vector<int32_t> next(experts + 1);
  for (int64_t i = 0; i < args.count; ++i) ++next[bucket(i)];
  int32_t first = 0;
  for (size_t e = 0; e <= experts; ++e) {
    args.offsets[e] = first;
    first += std::exchange(next[e], first);
  }
  for (int64_t i = 0; i < args.count; ++i) {
    const size_t e = bucket(i);
    const int32_t place = next[e]++;
    args.rows[place] = static_cast<int32_t>(i);
    args.places[i] = e < experts ? place : -1;
  }
}

}  // namespace rtp_llm::cpu
