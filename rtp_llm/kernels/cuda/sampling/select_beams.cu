// SPDX-License-Identifier: Apache-2.0
// The selection of beams, a block for each search. A candidate finds its own rank in its group: by
// binary search in the sorted rows of the group's beams, and by counting where a penalty has put
// them out of order.
#include "rtp_llm/kernels/common/sampling/beams.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/beam_parts.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// A group of beams that takes its turn.
class BeamGroup {
 public:
  // `totals` [beams, columns] is scratch; `chosen` are the tokens of earlier groups.
  __device__ BeamGroup(const SelectBeamsArgs& args, const Part& beams, int64_t group,
                       float* all_totals)
      : args_(args),
        beams_(beams),
        columns_(static_cast<int>(args.columns)),
        size_((beams.end - beams.begin) * columns_),
        out_(group * args.k),
        totals_(all_totals + beams.begin * args.columns) {}

  __device__ void add_up(float penalty, const int32_t* chosen, int num_chosen) {
    for (int i = thread_index(); i < args_.k; i += kThreads) {
      args_.parents[out_ + i] = args_.tokens[out_ + i] = -1;
      args_.totals[out_ + i] = args_.logprobs[out_ + i] = -INFINITY;
    }
    for (int i = thread_index(); i < size_; i += kThreads) {
      const int64_t at = place_of(i);
      if (at < 0) {
        totals_[i] = -INFINITY;
        continue;
      }
      const float times = static_cast<float>(count_of(chosen, num_chosen, args_.ids[at]));
      const float value = __fsub_rn(args_.values[at], __fmul_rn(penalty, times));
      totals_[i] = __fadd_rn(args_.scores[beams_.begin + i / columns_], value);
    }
    __syncthreads();
  }

  __device__ void select(bool sorted) {
    for (int i = thread_index(); i < size_; i += kThreads) {
      const float total = totals_[i];
      if (!(total > -INFINITY)) continue;
      const int64_t rank = sorted ? rank_of<true>(i, total) : rank_of<false>(i, total);
      if (rank >= args_.k) continue;
      const int64_t at = place_of(i);
      args_.parents[out_ + rank] = i / columns_;
      args_.tokens[out_ + rank] = args_.ids[at];
      args_.totals[out_ + rank] = total;
      args_.logprobs[out_ + rank] = args_.values[at];
    }
    __syncthreads();
  }

  // Appends the tokens that the group goes on with, by one thread, to at most `most`; returns how
  // many are there.
  __device__ int choose(const Part& stops, int32_t* chosen, int num_chosen, int most) const {
    int rest = min(beams_.end - beams_.begin, most - num_chosen);
    for (int i = 0; i < args_.k && rest > 0; ++i) {
      const int token = args_.tokens[out_ + i];
      if (token < 0) break;
      if (count_of(args_.stop_ids + stops.begin, stops.end - stops.begin, token) > 0) continue;
      chosen[num_chosen++] = token;
      --rest;
    }
    return num_chosen;
  }

 private:
  // Where candidate i is in values and ids; -1: its beam has no row.
  __device__ int64_t place_of(int i) const {
    const int64_t row = args_.rows[beams_.begin + i / columns_];
    return args_.is_row(row) ? row * columns_ + i % columns_ : -1;
  }

  // Candidates that come before candidate i.
  template <bool kSorted>
  __device__ int64_t rank_of(int i, float total) const {
    int64_t rank = 0;
    for (int first = 0; first < size_ && rank < args_.k; first += columns_) {
      if constexpr (kSorted) {
        rank += sorted_before(first, i, total);
      } else {
        for (int j = first; j < first + columns_; ++j) rank += is_before(j, i, total) ? 1 : 0;
      }
    }
    return rank;
  }

  __device__ bool is_before(int j, int i, float total) const {
    const float other = totals_[j];
    return other > total || (other == total && j < i);
  }

  // Of the beam whose first candidate is `first`, whose totals fall.
  __device__ int sorted_before(int first, int i, float total) const {
    int low = 0;
    int high = columns_;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (is_before(first + middle, i, total)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const SelectBeamsArgs& args_;
  const Part beams_;
  const int columns_, size_;
  const int64_t out_;
  float* const totals_;
};

__global__ void __launch_bounds__(kThreads)
    select_of_searches(SelectBeamsArgs args, float* totals, int32_t* all_chosen) {
  __shared__ int num_chosen;
  const int64_t search = blockIdx.x;
  const Part groups(args.cu_groups, search, args.num_groups);
  const Part stops(args.cu_stops, search, args.num_stops);
  const float penalty = args.diversity_penalty[search];
  if (groups.begin == groups.end) return;
  const Part first(args.cu_beams, groups.begin, args.num_beams);
  int32_t* const chosen = all_chosen + first.begin;
  const int most = static_cast<int>(args.num_beams) - first.begin;
  if (thread_index() == 0) num_chosen = 0;
  __syncthreads();
  for (int g = groups.begin; g < groups.end; ++g) {
    const Part beams(args.cu_beams, g, args.num_beams);
    BeamGroup group(args, beams, g, totals);
    group.add_up(penalty, chosen, num_chosen);
    group.select(num_chosen == 0);
    if (penalty == 0.0f || g + 1 == groups.end) continue;
    if (thread_index() == 0) num_chosen = group.choose(stops, chosen, num_chosen, most);
    __syncthreads();
  }
}

}  // namespace

// Totals of all candidates, and the tokens that are chosen.
int64_t select_beams_scratch(const SelectBeamsArgs& args) {
  return args.num_beams * (args.columns + 1) * int64_t{sizeof(float)};
}

RTP_LLM_OPERATOR(select_beams, scratch)
void select_beams(const SelectBeamsArgs& args, void* scratch, void* stream) {
  if (args.num_searches == 0) return;
  auto* const totals = static_cast<float*>(scratch);
  auto* const chosen = reinterpret_cast<int32_t*>(totals + args.num_beams * args.columns);
  select_of_searches<<<blocks(args.num_searches, "select_beams"), kThreads, 0,
                       static_cast<Stream>(stream)>>>(args, totals, chosen);
  check_launch("select_beams");
}

}  // namespace rtp_llm::cuda
