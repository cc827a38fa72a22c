// SPDX-License-Identifier: Apache-2.0
// Drawing a token by its index among those that filters leave.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/order_workspace.h"
#include "rtp_llm/kernels/cuda/sampling/row_cut.h"

namespace rtp_llm::cuda {

// Where a uniform number in [0, 1) falls in a mass.
__device__ inline Mass drawn_from(Mass all, double uniform) {
  const Mass target = static_cast<Mass>(uniform * static_cast<double>(all));
  return target < all ? target : all - 1;
}

// The sums of a block's slice by segments, neighbouring tokens that a group of lanes adds up.
class Segments {
 public:
  __device__ Segments(const VocabSlice& slice, const RowCut& cut, Workspace& shared)
      : slice_(slice), cut_(cut), shared_(shared) {
    constexpr int kFewest = 1024;  // tokens that keep a group of lanes busy
    constexpr int kPack = 4;
    const int groups = thread_count() / kGroup;
    const int rounds = min(max(slice.size / (groups * kFewest), 1), kMaxSegments / groups);
    count_ = groups * rounds;
    share_ = ((slice.size + count_ - 1) / count_ + kPack - 1) / kPack * kPack;
  }

  // The sum of the slice.
  __device__ Mass sum() {
    const RowCut cut = cut_;
    Mass all = 0;
    for (int s = thread_index() / kGroup; s < count_; s += thread_count() / kGroup) {
      Mass own = 0;
      for_logits(segment(s), Sharers::of_group(), [&](float x, int i) { own += cut(x, i); });
      own = reduce_group(own, Sum{});
      if (thread_index() % kGroup != 0) continue;
      shared_.segments[s] = own;
      all += own;
    }
    return reduce_block(all, Mass{0}, Sum{});
  }

  // The token in which `target` lies, which is below the sum.
  __device__ int token(Mass target) const {
    const auto sum_of = [this](int s) { return Amount{0, shared_.segments[s]}; };
    find_entry(count_, sum_of, Measure::kMass, target, shared_);
    const VocabSlice found = segment(shared_.entry);
    const auto mass_of = [&](int i) {
      const float x = found.logits[i];
      return Amount{0, cut_(is_finite(x) ? x : -INFINITY, found.begin + i)};
    };
    find_entry(found.size, mass_of, Measure::kMass, target - shared_.before.mass, shared_);
    return found.begin + shared_.entry;
  }

 private:
  __device__ VocabSlice segment(int s) const {
    const int first = min(s * share_, slice_.size);
    return {slice_.logits + first, slice_.begin + first, min(share_, slice_.size - first)};
  }

  const VocabSlice& slice_;
  const RowCut& cut_;
  Workspace& shared_;
  int count_, share_;
};

// The token at which the mass of the cluster's row, by index, exceeds `uniform` of all, which goes
// to cut->kept. Only the block whose slice has it learns it; the others get -1.
__device__ inline int draw_by_index(const Cluster& cluster, const VocabSlice& slice, RowCut* cut,
                                    double uniform, Workspace& shared) {
  Segments segments(slice, *cut, shared);
  const Mass own = segments.sum();
  if (thread_index() < cluster.size()) {
    cluster.of(shared.drawn, thread_index())[cluster.rank()] = own;
  }
  sync(cluster);
  Mass all = 0;
  Mass before = 0;
  for (int r = 0; r < cluster.size(); ++r) {
    if (r == cluster.rank()) before = all;
    all += shared.drawn[r];
  }
  cut->kept = all;
  const Mass target = drawn_from(all, uniform);
  if (target < before || target - before >= own) return -1;
  return segments.token(target - before);
}

}  // namespace rtp_llm::cuda
