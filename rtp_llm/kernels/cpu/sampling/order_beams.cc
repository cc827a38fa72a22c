// SPDX-License-Identifier: Apache-2.0
// Beams go on: with what they have chosen, and from the blocks of their parents.
#include <algorithm>
#include <cstring>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/sampling/beams.h"
#include "rtp_llm/kernels/cpu/sampling/sampling.h"

namespace rtp_llm::cpu {
namespace {

void choose_for_group(const ChooseBeamsArgs& args, int64_t group, const int32_t* stops,
                      const int32_t* stops_end) {
  const int32_t first = args.cu_beams[group];
  const int32_t end = first + args.widths[group];
  int32_t beam = first;
  for (int64_t at = group * args.k; at < (group + 1) * args.k && beam < end; ++at) {
    const int32_t token = args.tokens[at];
    if (token < 0 || std::find(stops, stops_end, token) != stops_end) continue;
    args.scores[beam] = args.totals[at];
    args.beam_parents[beam] = first + args.parents[at];
    if (args.rows[beam] >= 0) args.row_tokens[args.rows[beam]] = token;
    ++beam;
  }
}

// The beams of a group that is in the step, and memory of their own.
struct BeamFamily {
  const OrderBeamsArgs& args;
  int64_t first, count;
  int32_t last, offset;  // the block of their tokens, and the place there
  int32_t* blocks;       // [count, table_width]: those that the beams had
  int32_t* owners;       // [count]: whose last block each one gets

  int64_t parent_of(int64_t beam) const { return args.beam_parents[first + beam] - first; }
  int32_t* table_of(int64_t beam) const {
    return args.block_table + args.sequences[first + beam] * args.table_width;
  }
  const int32_t* blocks_of(int64_t beam) const { return blocks + beam * args.table_width; }

  // As LastBlockOwners of the runtime.
  void find_owners() const {
    int64_t childless = 0;
    for (int64_t beam = 0; beam < count; ++beam) {
      const int64_t parent = parent_of(beam);
      const bool is_first = !is_parent(parent, beam);
      owners[beam] = static_cast<int32_t>(parent);
      if (is_first) continue;
      while (is_parent(childless, count)) ++childless;
      owners[beam] = static_cast<int32_t>(childless++);
    }
  }

  // Whether one of the first `beams` beams has `parent` for its parent.
  bool is_parent(int64_t parent, int64_t beams) const {
    const int32_t* const parents = args.beam_parents + first;
    return std::find(parents, parents + beams, static_cast<int32_t>(first + parent)) !=
           parents + beams;
  }

  void order() const {
    const size_t bytes = sizeof(int32_t) * static_cast<size_t>(last + 1);
    for (int64_t beam = 0; beam < count; ++beam) {
      std::memcpy(blocks + beam * args.table_width, table_of(beam), bytes);
    }
    for (int64_t beam = 0; beam < count; ++beam) {
      const int64_t parent = parent_of(beam), owner = offset == 0 ? beam : owners[beam];
      const int32_t source = blocks_of(parent)[last], target = blocks_of(owner)[last];
      int32_t* const table = table_of(beam);
      if (parent != beam) std::memcpy(table, blocks_of(parent), bytes);
      table[last] = target;
      args.slot_mapping[args.sequences[first + beam]] = target * args.block_size + offset;
      int32_t* const pair = args.pairs + 2 * (first + beam);
      const bool copies = offset != 0 && source != target;
      pair[0] = copies ? source : -1;
      pair[1] = copies ? target : -1;
    }
  }
};

}  // namespace

RTP_LLM_OPERATOR(choose_beams)
void choose_beams(const ChooseBeamsArgs& args, const ParallelFor& /*parallel*/) {
  for (int64_t search = 0; search < args.num_searches; ++search) {
    const int32_t* const stops = args.stop_ids + args.cu_stops[search];
    const int32_t* const stops_end = args.stop_ids + args.cu_stops[search + 1];
    for (int64_t group = args.cu_groups[search]; group < args.cu_groups[search + 1]; ++group) {
      choose_for_group(args, group, stops, stops_end);
    }
  }
}

int64_t order_beams_scratch(const OrderBeamsArgs& args, int /*threads*/) {
  return args.num_beams * (args.table_width + 1) * int64_t{sizeof(int32_t)};
}

RTP_LLM_OPERATOR(order_beams, scratch)
void order_beams(const OrderBeamsArgs& args, void* scratch, const ParallelFor& /*parallel*/) {
  std::fill(args.pairs, args.pairs + 2 * args.num_beams, -1);
  auto* const blocks = static_cast<int32_t*>(scratch);
  auto* const owners = blocks + args.num_beams * args.table_width;
  for (int64_t group = 0; group < args.num_groups; ++group) {
    const int64_t first = args.cu_beams[group], count = args.cu_beams[group + 1] - first;
    if (count == 0 || args.sequences[first] < 0) continue;
    const int32_t position = args.positions[args.sequences[first]];
    const BeamFamily family = {args,
                               first,
                               count,
                               position / args.block_size,
                               position % args.block_size,
                               blocks + first * args.table_width,
                               owners + first};
    family.find_owners();
    family.order();
  }
}

}  // namespace rtp_llm::cpu
