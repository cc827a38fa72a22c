// SPDX-License-Identifier: Apache-2.0
// Beams go on: with what they have chosen, and from the blocks of their parents. The host cannot
// check the numbers; what would be outside is left as it is.
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/sampling/beam_parts.h"
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

namespace rtp_llm::xpu {
namespace {

// The beams of a group that is in the step.
struct BeamFamily {
  const OrderBeamsArgs& args;
  Part beams;
  int32_t* blocks;  // [beams, table_width]: those that the beams had
  int32_t* others;  // [beams]: whether a beam is a child of its parent, but not the first one
  int32_t* owners;  // [beams]: whose last block each one gets

  int64_t count() const { return beams.end - beams.begin; }
  int64_t parent_of(int64_t beam) const {
    return args.beam_parents[beams.begin + beam] - beams.begin;
  }
  int32_t* table_of(int64_t beam) const {
    return args.block_table + args.sequences[beams.begin + beam] * args.table_width;
  }

  // Whether all numbers of the group lie within their tensors.
  bool is_here(const Group& group) const {
    if (count() == 0 || !args.is_sequence(args.sequences[beams.begin])) return false;
    const int32_t position = args.positions[args.sequences[beams.begin]];
    bool good = position >= 0 && position / args.block_size < args.table_width;
    for_items(group, count(), [&](int64_t beam) {
      const int64_t parent = parent_of(beam);
      good = good && args.is_sequence(args.sequences[beams.begin + beam]) && parent >= 0 &&
             parent < count();
    });
    return sycl::all_of_group(group, good);
  }

  // Among the first `first` beams.
  int64_t children_of(int64_t parent, int64_t first) const {
    return count_of(args.beam_parents + beams.begin, first,
                    static_cast<int32_t>(beams.begin + parent));
  }

  // The beam without a child that is as many places on among these as `beam` among `others`.
  int64_t spare_of(int64_t beam) const {
    int64_t before = count_of(others, beam, 1);
    int64_t spare = 0;
    while (children_of(spare, count()) > 0 || before-- > 0) ++spare;
    return spare;
  }

  // As LastBlockOwners of the runtime.
  void find_owners(const Group& group) const {
    for_items(group, count(),
              [&](int64_t beam) { others[beam] = children_of(parent_of(beam), beam) > 0 ? 1 : 0; });
    sycl::group_barrier(group);
    for_items(group, count(), [&](int64_t beam) {
      owners[beam] = static_cast<int32_t>(others[beam] != 0 ? spare_of(beam) : parent_of(beam));
    });
    sycl::group_barrier(group);
  }

  void move_blocks(const Group& group, int64_t last, int32_t offset) const {
    const int64_t columns = last + 1;
    for_items(group, count() * columns, [&](int64_t i) {
      blocks[i / columns * args.table_width + i % columns] = table_of(i / columns)[i % columns];
    });
    sycl::group_barrier(group);
    for_items(group, count() * columns, [&](int64_t i) {
      const int64_t beam = i / columns, column = i % columns;
      const int32_t source = blocks[parent_of(beam) * args.table_width + column];
      if (column < last) {
        table_of(beam)[column] = source;
        return;
      }
      const int64_t owner = offset == 0 ? beam : owners[beam];
      const int32_t target = blocks[owner * args.table_width + column];
      table_of(beam)[column] = target;
      args.slot_mapping[args.sequences[beams.begin + beam]] = target * args.block_size + offset;
      if (offset == 0 || source == target) return;
      args.pairs[2 * (beams.begin + beam)] = source;
      args.pairs[2 * (beams.begin + beam) + 1] = target;
    });
  }
};

}  // namespace

// A group of items for each search; each item looks at all candidates before its own.
void choose_beams(const ChooseBeamsArgs& args) {
  const Group group = this_group();
  const int64_t search = group_index(group);
  const Part groups = part_of(args.cu_groups, search, args.num_groups);
  const Part stops = part_of(args.cu_stops, search, args.num_stops);
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const Part beams = part_of(args.cu_beams, g, args.num_beams);
    const int64_t width = std::min<int64_t>(args.widths[g], beams.end - beams.begin);
    const int32_t* const tokens = args.tokens + g * args.k;
    const auto goes = [&](int64_t i) {
      return tokens[i] >= 0 &&
             count_of(args.stop_ids + stops.begin, stops.end - stops.begin, tokens[i]) == 0;
    };
    for_items(group, args.k, [&](int64_t i) {
      if (!goes(i)) return;
      int64_t place = 0;
      for (int64_t j = 0; j < i && place < width; ++j) place += goes(j) ? 1 : 0;
      if (place >= width) return;
      const int64_t beam = beams.begin + place;
      args.scores[beam] = args.totals[g * args.k + i];
      args.beam_parents[beam] = static_cast<int32_t>(beams.begin + args.parents[g * args.k + i]);
      if (args.is_row(args.rows[beam])) args.row_tokens[args.rows[beam]] = tokens[i];
    });
  }
}

// A group of items for each group of beams.
void order_beams(const ScratchOrderArgs& given) {
  const Group group = this_group();
  const OrderBeamsArgs& args = given.order;
  const Part beams = part_of(args.cu_beams, group_index(group), args.num_beams);
  for_items(group, 2 * (beams.end - beams.begin),
            [&](int64_t i) { args.pairs[2 * beams.begin + i] = -1; });
  sycl::group_barrier(group);
  int32_t* const others = given.scratch + args.num_beams * args.table_width;
  const BeamFamily family = {args, beams, given.scratch + beams.begin * args.table_width,
                             others + beams.begin, others + args.num_beams + beams.begin};
  if (!family.is_here(group)) return;
  family.find_owners(group);
  const int32_t position = args.positions[args.sequences[beams.begin]];
  family.move_blocks(group, position / args.block_size, position % args.block_size);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(choose_beams, rtp_llm::ChooseBeamsArgs) { rtp_llm::xpu::choose_beams(args); }
RTP_LLM_XPU_ENTRY(order_beams, rtp_llm::xpu::ScratchOrderArgs) { rtp_llm::xpu::order_beams(args); }
