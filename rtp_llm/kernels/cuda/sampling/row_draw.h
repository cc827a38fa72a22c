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

// The sums of a block's slice by segments, neighbouring tokens that a group of lanes adds up. In a
// round each group has one; a round's segments are neighbours, too.
class Segments {
 public:
  // Neighbouring segments.
  struct Stretch {
    int first, count;
    Mass sum;
  };
  static constexpr Mass kAll = ~Mass{0};

  __device__ Segments(const VocabSlice& slice, const RowCut& cut, Workspace& shared)
      : slice_(slice), cut_(cut), shared_(shared), groups_(thread_count() / kGroup) {
    constexpr int kFewest = 1024;  // tokens that keep a group of lanes busy
    constexpr int kPack = 4;
    rounds_ = min(max(slice.size / (groups_ * kFewest), 1), kMaxSegments / groups_);
    const int count = groups_ * rounds_;
    share_ = ((slice.size + count - 1) / count + kPack - 1) / kPack * kPack;
  }

  // Adds up rounds from the first one on, or from the last one back. Stops at the round in which
  // the mass *left from that end lies and returns it; *left is then what is left of it there. With
  // kAll it adds up the whole slice.
  __device__ Stretch add_up(Mass* left, bool forward) {
    const bool all = *left == kAll;
    Mass own = 0;
    for (int done = 1;; ++done) {
      const int round = forward ? done - 1 : rounds_ - done;
      own += add_up_segment(round * groups_ + thread_index() / kGroup);
      if (all && done < rounds_) continue;
      const Mass sum = reduce_block(thread_index() % kGroup == 0 ? own : 0, Mass{0}, Sum{});
      if (all) return {0, groups_ * rounds_, sum};
      if (*left < sum || done == rounds_) return {round * groups_, groups_, sum};
      *left -= sum;
      own = 0;
    }
  }

  // The token of a stretch in which `target` lies, which is below its sum.
  __device__ int token(const Stretch& stretch, Mass target) const {
    const auto sum_of = [&](int s) { return Amount{0, shared_.segments[stretch.first + s]}; };
    find_entry(stretch.count, sum_of, Measure::kMass, target, shared_);
    const VocabSlice found = segment(stretch.first + shared_.entry);
    const auto mass_of = [&](int i) { return Amount{0, cut_(found.logits[i], found.begin + i)}; };
    find_entry(found.size, mass_of, Measure::kMass, target - shared_.before.mass, shared_);
    return found.begin + shared_.entry;
  }

 private:
  // The sum of this group's segment.
  __device__ Mass add_up_segment(int s) {
    const RowCut cut = cut_;
    Mass own = 0;
    for_packs<4>(segment(s), Sharers::of_group(), [&](const auto& pack, int index) {
      if (cut.is_behind(pack)) return;
      constexpr int kWide = sizeof(pack) / sizeof(float);
#pragma unroll
      for (int i = 0; i < kWide; ++i) own += cut(pack.element[i], index + i);
    });
    own = reduce_group(own, Sum{});
    if (thread_index() % kGroup == 0) shared_.segments[s] = own;
    return own;
  }

  __device__ VocabSlice segment(int s) const {
    const int first = min(s * share_, slice_.size);
    return {slice_.logits + first, slice_.begin + first, min(share_, slice_.size - first)};
  }

  const VocabSlice& slice_;
  const RowCut& cut_;
  Workspace& shared_;
  const int groups_;
  int rounds_, share_;
};

// The token at which the mass of the cluster's row, by index, exceeds `uniform` of all, which is
// cut->kept; where that is 0 it is not known yet, and gets there. Only the block whose slice has
// the token learns it; the others get -1.
__device__ inline int draw_by_index(const Cluster& cluster, const VocabSlice& slice, RowCut* cut,
                                    double uniform, Workspace& shared) {
  Segments segments(slice, *cut, shared);
  // With all of the row and its mass, only what lies between the token and the nearer end counts.
  const bool known = cluster.size() == 1 && cut->kept != 0;
  Mass target = known ? drawn_from(cut->kept, uniform) : 0;
  const bool forward = !known || target < cut->kept / 2;
  Mass left = !known ? Segments::kAll : forward ? target : cut->kept - 1 - target;
  const Segments::Stretch found = segments.add_up(&left, forward);
  if (known) {
    target = forward ? left : found.sum - 1 - left;
  } else {
    if (thread_index() < cluster.size()) {
      cluster.of(shared.drawn, thread_index())[cluster.rank()] = found.sum;
    }
    sync(cluster);
    Mass all = 0;
    Mass before = 0;
    for (int r = 0; r < cluster.size(); ++r) {
      if (r == cluster.rank()) before = all;
      all += shared.drawn[r];
    }
    cut->kept = all;
    target = drawn_from(all, uniform);
    if (target < before || target - before >= found.sum) return -1;
    target -= before;
  }
  return segments.token(found, target);
}

}  // namespace rtp_llm::cuda
