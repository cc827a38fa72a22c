// SPDX-License-Identifier: Apache-2.0
// The selection of beams: few candidates of each group, so no vector code.
#include <algorithm>
#include <cmath>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/sampling/beams.h"
#include "rtp_llm/kernels/cpu/sampling/sampling.h"

namespace rtp_llm::cpu {
namespace {

struct Candidate {
  float total;
  int32_t place;  // in its group

  bool operator<(const Candidate& other) const {
    return total > other.total || (total == other.total && place < other.place);
  }
};

// A run of int32 within a larger array.
struct Run {
  const int32_t* first;
  const int32_t* last;

  bool has(int32_t value) const { return std::find(first, last, value) != last; }
  int64_t count(int32_t value) const { return std::count(first, last, value); }
};

// Lists the candidates of a group, which are not -inf; returns how many.
int64_t list_candidates(const SelectBeamsArgs& args, int64_t group, float penalty,
                        const Run& chosen, Candidate* candidates) {
  Candidate* end = candidates;
  int32_t place = 0;
  for (int64_t beam = args.cu_beams[group]; beam < args.cu_beams[group + 1]; ++beam) {
    const int64_t row = args.rows[beam];
    if (row < 0) {
      place += static_cast<int32_t>(args.columns);
      continue;
    }
    for (int64_t at = row * args.columns; at < (row + 1) * args.columns; ++at, ++place) {
      const auto times = static_cast<float>(chosen.count(args.ids[at]));
      const float total = args.scores[beam] + (args.values[at] - penalty * times);
      if (total > -INFINITY) *end++ = {total, place};
    }
  }
  return end - candidates;
}

// Writes the first `found` of k candidates.
void write_group(const SelectBeamsArgs& args, int64_t group, const Candidate* candidates,
                 int64_t found) {
  for (int64_t i = 0; i < args.k; ++i) {
    const int64_t out = group * args.k + i;
    if (i >= found) {
      args.parents[out] = args.tokens[out] = -1;
      args.totals[out] = args.logprobs[out] = -INFINITY;
      continue;
    }
    const int64_t parent = candidates[i].place / args.columns;
    const int64_t row = args.rows[args.cu_beams[group] + parent];
    const int64_t at = row * args.columns + candidates[i].place % args.columns;
    args.parents[out] = static_cast<int32_t>(parent);
    args.tokens[out] = args.ids[at];
    args.totals[out] = candidates[i].total;
    args.logprobs[out] = args.values[at];
  }
}

// Appends the tokens that a group goes on with; returns their end.
int32_t* choose(const SelectBeamsArgs& args, int64_t group, const Run& stops, int64_t found,
                int32_t* chosen) {
  int64_t beams = args.cu_beams[group + 1] - args.cu_beams[group];
  const int32_t* const tokens = args.tokens + group * args.k;
  for (int64_t i = 0; i < found && beams > 0; ++i) {
    if (stops.has(tokens[i])) continue;
    *chosen++ = tokens[i];
    --beams;
  }
  return chosen;
}

void select_search(const SelectBeamsArgs& args, int64_t search, Candidate* candidates,
                   int32_t* chosen) {
  const float penalty = args.diversity_penalty[search];
  const int64_t first = args.cu_groups[search], last = args.cu_groups[search + 1];
  const Run stops = {args.stop_ids + args.cu_stops[search],
                     args.stop_ids + args.cu_stops[search + 1]};
  int32_t* end = chosen;
  for (int64_t group = first; group < last; ++group) {
    const int64_t count = list_candidates(args, group, penalty, {chosen, end}, candidates);
    const int64_t found = std::min(args.k, count);
    std::partial_sort(candidates, candidates + found, candidates + count);
    write_group(args, group, candidates, found);
    if (penalty != 0.0f && group + 1 < last) end = choose(args, group, stops, found, end);
  }
}

}  // namespace

// A search uses the part of its beams.
int64_t select_beams_scratch(const SelectBeamsArgs& args, int /*threads*/) {
  const int64_t of_beam = args.columns * int64_t{sizeof(Candidate)} + int64_t{sizeof(int32_t)};
  return args.num_beams * of_beam;
}

RTP_LLM_OPERATOR(select_beams, scratch)
void select_beams(const SelectBeamsArgs& args, void* scratch, const ParallelFor& parallel) {
  auto* const candidates = static_cast<Candidate*>(scratch);
  auto* const chosen = reinterpret_cast<int32_t*>(candidates + args.num_beams * args.columns);
  parallel(0, args.num_searches, 16, [&](int64_t begin, int64_t end) {
    for (int64_t search = begin; search < end; ++search) {
      const int64_t beam = args.cu_beams[args.cu_groups[search]];
      select_search(args, search, candidates + beam * args.columns, chosen + beam);
    }
  });
}

}  // namespace rtp_llm::cpu
