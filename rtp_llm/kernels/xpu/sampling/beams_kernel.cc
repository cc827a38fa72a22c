// SPDX-License-Identifier: Apache-2.0
// The selection of beams, a group of items for each search: a candidate finds its own rank among
// those of its group of beams.
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/sampling/beam_parts.h"
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

namespace rtp_llm::xpu {
namespace {

// A group of beams that takes its turn; `chosen` are the tokens of earlier ones.
struct BeamTurn {
  const SelectBeamsArgs& args;
  Part beams;
  float* totals;  // [beams, columns]
  int64_t out;    // where its results begin

  int64_t size() const { return (beams.end - beams.begin) * args.columns; }

  // Where candidate i is in values and ids; -1: its beam has no row.
  int64_t place_of(int64_t i) const {
    const int64_t row = args.rows[beams.begin + i / args.columns];
    return args.is_row(row) ? row * args.columns + i % args.columns : -1;
  }

  void add_up(const Group& group, float penalty, const int32_t* chosen, int64_t num_chosen) const {
    for_items(group, args.k, [&](int64_t i) {
      args.parents[out + i] = args.tokens[out + i] = -1;
      args.totals[out + i] = args.logprobs[out + i] = -kInfinity;
    });
    for_items(group, size(), [&](int64_t i) {
      const int64_t at = place_of(i);
      if (at < 0) {
        totals[i] = -kInfinity;
        return;
      }
      const auto times = static_cast<float>(count_of(chosen, num_chosen, args.ids[at]));
      const float value = args.values[at] - penalty * times;
      totals[i] = args.scores[beams.begin + i / args.columns] + value;
    });
    sycl::group_barrier(group);
  }

  void select(const Group& group) const {
    for_items(group, size(), [&](int64_t i) {
      const float total = totals[i];
      if (!(total > -kInfinity)) return;
      int64_t rank = 0;
      for (int64_t j = 0; j < size() && rank < args.k; ++j) {
        rank += totals[j] > total || (totals[j] == total && j < i) ? 1 : 0;
      }
      if (rank >= args.k) return;
      const int64_t at = place_of(i);
      args.parents[out + rank] = static_cast<int32_t>(i / args.columns);
      args.tokens[out + rank] = args.ids[at];
      args.totals[out + rank] = total;
      args.logprobs[out + rank] = args.values[at];
    });
    sycl::group_barrier(group);
  }

  // Appends the tokens that the beams go on with, at most `most`; returns how many are there.
  int64_t choose(const Part& stops, int32_t* chosen, int64_t num_chosen, int64_t most) const {
    int64_t rest = std::min(beams.end - beams.begin, most - num_chosen);
    for (int64_t i = 0; i < args.k && rest > 0; ++i) {
      const int32_t token = args.tokens[out + i];
      if (token < 0) break;
      if (count_of(args.stop_ids + stops.begin, stops.end - stops.begin, token) > 0) continue;
      chosen[num_chosen++] = token;
      --rest;
    }
    return num_chosen;
  }
};

}  // namespace

void select_beams(const ScratchBeamsArgs& given) {
  const Group group = this_group();
  const SelectBeamsArgs& args = given.select;
  const int64_t search = group_index(group);
  const Part groups = part_of(args.cu_groups, search, args.num_groups);
  if (groups.begin == groups.end) return;
  const Part stops = part_of(args.cu_stops, search, args.num_stops);
  const float penalty = args.diversity_penalty[search];
  const int64_t first = part_of(args.cu_beams, groups.begin, args.num_beams).begin;
  int32_t* const chosen = given.chosen + first;
  int64_t num_chosen = 0;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const Part beams = part_of(args.cu_beams, g, args.num_beams);
    const BeamTurn turn = {args, beams, given.totals + beams.begin * args.columns, g * args.k};
    turn.add_up(group, penalty, chosen, num_chosen);
    turn.select(group);
    if (penalty == 0.0f) continue;
    if (item_index(group) == 0) {
      num_chosen = turn.choose(stops, chosen, num_chosen, args.num_beams - first);
    }
    num_chosen = sycl::group_broadcast(group, num_chosen);
    sycl::group_barrier(group);
  }
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(select_beams, rtp_llm::xpu::ScratchBeamsArgs) {
  rtp_llm::xpu::select_beams(args);
}
