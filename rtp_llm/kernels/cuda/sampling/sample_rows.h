// SPDX-License-Identifier: Apache-2.0
// The kernel that samples rows, and its launch.
#pragma once

#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/launch_row_clusters.h"
#include "rtp_llm/kernels/cuda/sampling/row_cut.h"
#include "rtp_llm/kernels/cuda/sampling/row_draw.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"
#include "rtp_llm/kernels/cuda/sampling/sampling_order.h"

namespace rtp_llm::cuda {

// Filters, and the draw among what they leave. Filters find where they end in the row's order; the
// draw goes by index, so that tokens that are nearly as likely may change places in that order
// without effect.
class Draw {
 public:
  __device__ Draw(Order& order, const Cluster& cluster, const VocabSlice& slice, Workspace& shared)
      : order_(order), cluster_(cluster), slice_(slice), shared_(shared) {}

  // Keep the `count` first tokens, fewer than there are. False: another block has them.
  __device__ bool keep_first(int count) {
    if (count <= kFew) {
      order_.look(Order::kCounts);
      if (order_.sort_first(count)) {
        listed_ = count;
        return !order_.is_elsewhere();
      }
    }
    find_mass(Order::kCounts | Order::kMasses);
    keep_up_to(order_.place_of(Measure::kCount, static_cast<Mass>(count - 1)));
    return true;
  }

  // Keep the fewest first tokens that have a share of the mass kept so far; at least one.
  __device__ void keep_share(float share) {
    const auto last_of = [share](Mass all) {
      const double wanted = ceil(static_cast<double>(share) * static_cast<double>(all));
      const Mass last = wanted > 1.0 ? static_cast<Mass>(wanted) - 1 : 0;
      return last < all ? last : all - 1;
    };
    if (listed_ > 0) {
      listed_ = order_.sorted_within(listed_, last_of);
      return;
    }
    if (!looked_) find_mass(Order::kMasses);
    keep_up_to(order_.place_of(Measure::kMass, last_of(kept_)));
  }

  // Keep the tokens with at least this weight in relation to the best one.
  __device__ void keep_weight(float least) {
    order_.drop_below(least);
    kept_ = 0;
  }

  // -1: another block has it. *cut is what it was drawn from.
  __device__ int token(double uniform, RowCut* cut) {
    *cut = {order_.weighting(), least_, kept_};
    if (listed_ == 0) return draw_by_index(cluster_, slice_, cut, uniform, shared_);
    cut->least = order_.sorted()[listed_ - 1];
    const auto target = [uniform](Mass all) { return drawn_from(all, uniform); };
    return order_.sorted_by_index(listed_, target, &cut->kept);
  }

 private:
  __device__ void find_mass(int what) {
    order_.look(what);
    looked_ = true;
    kept_ = order_.mass();
  }

  __device__ void keep_up_to(const Place& last) {
    least_ = last.key > least_ ? last.key : least_;
    kept_ = last.before.mass + order_.weight(last.key);
  }

  Order& order_;
  const Cluster& cluster_;
  const VocabSlice& slice_;
  Workspace& shared_;
  Key least_ = 0;
  Mass kept_ = 0;  // of what is kept; 0: not known
  bool looked_ = false;
  int listed_ = 0;  // so many of the first tokens are kept, which are sorted
};

// -1: another block has the token.
__device__ inline int draw_token(Draw& draw, const SampleArgs& args, int64_t r, RowCut* cut) {
  const int top_k = args.top_k[r];
  const float top_p = args.top_p[r];
  const float min_p = args.min_p[r];
  if (top_k > 0 && top_k < args.logits.vocab && !draw.keep_first(top_k)) return -1;
  if (top_p < 1.0f) draw.keep_share(top_p);
  if (min_p > 0.0f) draw.keep_weight(fminf(min_p, 1.0f));
  const double uniform =
      philox_uniform(static_cast<uint64_t>(args.seeds[r]), static_cast<uint64_t>(args.steps[r]));
  return draw.token(uniform, cut);
}

// With kCuts it also writes what each row is sampled from.
template <int kBlocksAtOnce, bool kCuts>
__global__ void __launch_bounds__(kBlockThreads, kBlocksAtOnce)
    sample_rows(SampleArgs args, bool keep, RowCut* cuts) {
  __shared__ Workspace shared;
  const Cluster cluster;
  const RowMemory memory(cluster);
  const int64_t r = blockIdx.x / cluster.size();
  wait_for_previous();
  const int vocab = static_cast<int>(args.logits.vocab);
  const float temperature = args.temperature[r];
  const bool greedy = !(temperature > 0.0f) || args.top_k[r] == 1;
  VocabSlice slice = slice_of(cluster, args.logits.row(r), vocab);
  const RowStatistics statistics = compute_row_statistics(
      cluster, slice, keep && !greedy ? memory.logits : nullptr, shared.block_statistics);
  let_next_start();
  const bool ok = statistics.bad == 0 && statistics.best != 0;
  const bool is_first = cluster.rank() == 0 && thread_index() == 0;
  int token = statistics.best != 0 ? index_of(statistics.best) : 0;
  if (ok && !greedy) {
    const Weighting weighting(logit_of(statistics.best), temperature, vocab);
    Order order(cluster, slice, statistics, weighting, shared, memory.parts);
    Draw draw(order, cluster, slice, shared);
    RowCut cut{weighting, 0, 0};
    token = draw_token(draw, args, r, &cut);
    if constexpr (kCuts) {
      if (token >= 0 && thread_index() == 0) cuts[r] = cut;
    }
  } else {
    if (!is_first) return;
    if constexpr (kCuts) cuts[r].kept = 0;
  }
  if (token < 0 || thread_index() != 0) return;
  args.tokens[r] = token;
  args.status[r] = statistics.bad != 0 ? kNotFinite : statistics.best == 0 ? kAllBanned : kDrawn;
}

// Each pair is instantiated in a file of its own: one takes about 25 seconds to compile.
template <int kBlocksAtOnce, bool kCuts>
void launch_sample_rows(const SampleArgs& args, RowCut* cuts, void* stream) {
  constexpr auto kernel = sample_rows<kBlocksAtOnce, kCuts>;
  const int64_t rows = args.logits.num_rows;
  const ClusterShape shape = cluster_shape<kernel>(rows, args.logits.vocab);
  launch_row_clusters<kernel>(shape, rows, "sample", stream, args, shape.keep, cuts);
}

extern template void launch_sample_rows<1, false>(const SampleArgs&, RowCut*, void*);
extern template void launch_sample_rows<1, true>(const SampleArgs&, RowCut*, void*);
extern template void launch_sample_rows<2, false>(const SampleArgs&, RowCut*, void*);
extern template void launch_sample_rows<2, true>(const SampleArgs&, RowCut*, void*);

}  // namespace rtp_llm::cuda
