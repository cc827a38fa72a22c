// SPDX-License-Identifier: Apache-2.0
// Beams go on: with what they have chosen, and from the blocks of their parents. The host cannot
// check the numbers; what would be outside is left as it is.
#include "rtp_llm/kernels/common/sampling/beams.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/beam_parts.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kChooseThreads = 64, kOrderThreads = 256;

// A block of threads for each search.
__global__ void __launch_bounds__(kChooseThreads) choose_of_searches(ChooseBeamsArgs args) {
  __shared__ int goes[kChooseThreads];
  const int64_t search = blockIdx.x;
  const int thread = thread_index();
  const Part groups(args.cu_groups, search, args.num_groups);
  const Part stops(args.cu_stops, search, args.num_stops);
  for (int group = groups.begin; group < groups.end; ++group) {
    const Part beams(args.cu_beams, group, args.num_beams);
    const int width = min(args.widths[group], beams.end - beams.begin);
    int chosen = 0;  // before these candidates
    for (int64_t first = 0; first < args.k && chosen < width; first += kChooseThreads) {
      const int64_t at = group * args.k + first + thread;
      const int token = first + thread < args.k ? args.tokens[at] : -1;
      goes[thread] =
          token >= 0 && count_of(args.stop_ids + stops.begin, stops.end - stops.begin, token) == 0;
      __syncthreads();
      int place = chosen;
      for (int i = 0; i < kChooseThreads; ++i) {
        chosen += goes[i];
        if (i < thread) place += goes[i];
      }
      if (goes[thread] != 0 && place < width) {
        const int beam = beams.begin + place;
        args.scores[beam] = args.totals[at];
        args.beam_parents[beam] = beams.begin + args.parents[at];
        const int64_t row = args.rows[beam];
        if (args.is_row(row)) args.row_tokens[row] = token;
      }
      __syncthreads();
    }
  }
}

// The beams of a group that is in the step.
class BeamFamily {
 public:
  // `blocks` [beams, table_width], `others` [beams] and `owners` [beams] are scratch.
  __device__ BeamFamily(const OrderBeamsArgs& args, const Part& beams, int32_t* blocks,
                        int32_t* others, int32_t* owners)
      : args_(args),
        first_(beams.begin),
        count_(beams.end - beams.begin),
        blocks_(blocks),
        others_(others),
        owners_(owners) {}

  // Whether all numbers of the group lie within their tensors; `position` is that of its tokens.
  __device__ bool is_here(int* position) const {
    if (count_ == 0 || !args_.is_sequence(args_.sequences[first_])) return false;
    *position = args_.positions[args_.sequences[first_]];
    bool good = *position >= 0 && *position / args_.block_size < args_.table_width;
    for (int beam = thread_index(); beam < count_; beam += kOrderThreads) {
      const int parent = parent_of(beam);
      good = good && args_.is_sequence(args_.sequences[first_ + beam]) && parent >= 0 &&
             parent < count_;
    }
    return __syncthreads_and(good ? 1 : 0) != 0;
  }

  // As LastBlockOwners of the runtime: others_ are the children of a parent but its first one.
  __device__ void find_owners() const {
    for (int beam = thread_index(); beam < count_; beam += kOrderThreads) {
      others_[beam] = children_of(parent_of(beam), beam) > 0 ? 1 : 0;
    }
    __syncthreads();
    for (int beam = thread_index(); beam < count_; beam += kOrderThreads) {
      owners_[beam] = others_[beam] != 0 ? spare_of(beam) : parent_of(beam);
    }
    __syncthreads();
  }

  __device__ void move_blocks(int last, int offset) const {
    const int columns = last + 1, size = count_ * columns;
    for (int i = thread_index(); i < size; i += kOrderThreads) {
      *block(i / columns, i % columns) = table_of(i / columns)[i % columns];
    }
    __syncthreads();
    for (int i = thread_index(); i < size; i += kOrderThreads) {
      const int beam = i / columns, column = i % columns;
      const int parent = parent_of(beam), owner = offset == 0 ? beam : owners_[beam];
      const int source = *block(parent, column);
      if (column < last) {
        table_of(beam)[column] = source;
        continue;
      }
      const int target = *block(owner, column);
      table_of(beam)[column] = target;
      args_.slot_mapping[args_.sequences[first_ + beam]] = target * args_.block_size + offset;
      if (offset == 0 || source == target) continue;
      args_.pairs[2 * (first_ + beam)] = source;
      args_.pairs[2 * (first_ + beam) + 1] = target;
    }
  }

 private:
  __device__ int parent_of(int beam) const { return args_.beam_parents[first_ + beam] - first_; }
  __device__ int32_t* block(int beam, int column) const {
    return blocks_ + int64_t{beam} * args_.table_width + column;
  }
  __device__ int32_t* table_of(int beam) const {
    return args_.block_table + args_.sequences[first_ + beam] * args_.table_width;
  }

  // Among the first `beams` beams.
  __device__ int children_of(int parent, int beams) const {
    return count_of(args_.beam_parents + first_, beams, first_ + parent);
  }

  // The beam without a child that is as many places on among these as `beam` among the others_.
  __device__ int spare_of(int beam) const {
    int before = count_of(others_, beam, 1);
    int spare = 0;
    while (children_of(spare, count_) > 0 || before-- > 0) ++spare;
    return spare;
  }

  const OrderBeamsArgs& args_;
  const int first_, count_;
  int32_t* const blocks_;
  int32_t* const others_;
  int32_t* const owners_;
};

// A block of threads for each group.
__global__ void __launch_bounds__(kOrderThreads)
    order_of_groups(OrderBeamsArgs args, int32_t* scratch) {
  const Part beams(args.cu_beams, blockIdx.x, args.num_beams);
  for (int i = 2 * beams.begin + thread_index(); i < 2 * beams.end; i += kOrderThreads) {
    args.pairs[i] = -1;
  }
  __syncthreads();
  int32_t* const others = scratch + args.num_beams * args.table_width;
  int32_t* const owners = others + args.num_beams;
  const BeamFamily family(args, beams, scratch + beams.begin * args.table_width,
                          others + beams.begin, owners + beams.begin);
  int position = 0;
  if (!family.is_here(&position)) return;
  family.find_owners();
  family.move_blocks(position / args.block_size, position % args.block_size);
}

}  // namespace

RTP_LLM_OPERATOR(choose_beams)
void choose_beams(const ChooseBeamsArgs& args, void* stream) {
  if (args.num_searches == 0) return;
  const dim3 grid(blocks(args.num_searches, "choose_beams"));
  choose_of_searches<<<grid, kChooseThreads, 0, static_cast<Stream>(stream)>>>(args);
  check_launch("choose_beams");
}

// Blocks of all beams before the step, and two numbers of each beam.
int64_t order_beams_scratch(const OrderBeamsArgs& args) {
  return args.num_beams * (args.table_width + 2) * int64_t{sizeof(int32_t)};
}

RTP_LLM_OPERATOR(order_beams, scratch)
void order_beams(const OrderBeamsArgs& args, void* scratch, void* stream) {
  if (args.num_groups == 0) return;
  const dim3 grid(blocks(args.num_groups, "order_beams"));
  order_of_groups<<<grid, kOrderThreads, 0, static_cast<Stream>(stream)>>>(
      args, static_cast<int32_t*>(scratch));
  check_launch("order_beams");
}

}  // namespace rtp_llm::cuda
