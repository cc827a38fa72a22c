#include "rtp_llm/kernels/cuda/sampling/sampling.h"

#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/launch_row_clusters.h"
#include "rtp_llm/kernels/cuda/sampling/row_cut.h"
#include "rtp_llm/kernels/cuda/sampling/sampling_order.h"

namespace rtp_llm::cuda {
namespace {

// Filters, and the draw among what they leave.
class Draw {
 public:
  __device__ explicit Draw(Order& order) : order_(order) {}

  // Keep the `count` first tokens, fewer than there are. False: another block has them.
  __device__ bool keep_first(int count) {
    if (count <= kFew) order_.look(Order::kCounts);
    if (count > kFew || !order_.sort_first(count)) order_.look(Order::kCounts | Order::kMasses);
    looked_ = true;
    if (order_.is_elsewhere()) return false;
    keep_up_to(order_.place_of(Measure::kCount, static_cast<Mass>(count - 1)));
    return true;
  }

  // Keep the fewest first tokens that have a share of the mass kept so far; at least one.
  __device__ void keep_share(float share) {
    find_mass();
    const double wanted = ceil(static_cast<double>(share) * static_cast<double>(kept_));
    const Mass last = wanted > 1.0 ? static_cast<Mass>(wanted) - 1 : 0;
    keep_up_to(order_.place_of(Measure::kMass, last < kept_ ? last : kept_ - 1));
  }

  // Keep the tokens with at least this weight in relation to the best one.
  __device__ void keep_weight(float least) {
    order_.drop_below(least);
    if (looked_) kept_ = order_.mass_up_to(least_);
  }

  // What a token was drawn from.
  __device__ RowCut cut() const { return {order_.weighting(), least_, kept_}; }

  __device__ int token(double uniform) {
    find_mass();
    const Mass target = static_cast<Mass>(uniform * static_cast<double>(kept_));
    return index_of(order_.place_of(Measure::kMass, target < kept_ ? target : kept_ - 1, true).key);
  }

 private:
  __device__ void find_mass() {
    if (looked_) return;
    order_.look(Order::kMasses);
    looked_ = true;
    kept_ = order_.mass();
  }

  __device__ void keep_up_to(const Place& last) {
    least_ = last.key > least_ ? last.key : least_;
    kept_ = last.before.mass + order_.weight(last.key);
  }

  Order& order_;
  Key least_ = 0;
  Mass kept_ = 0;
  bool looked_ = false;
};

__device__ inline int draw_token(Draw& draw, const SampleArgs& args, int64_t r) {
  const int top_k = args.top_k[r];
  const float top_p = args.top_p[r];
  const float min_p = args.min_p[r];
  if (top_k > 0 && top_k < args.logits.vocab && !draw.keep_first(top_k)) return 0;
  if (top_p < 1.0f) draw.keep_share(top_p);
  if (min_p > 0.0f) draw.keep_weight(fminf(min_p, 1.0f));
  return draw.token(
      philox_uniform(static_cast<uint64_t>(args.seeds[r]), static_cast<uint64_t>(args.steps[r])));
}

// With kCuts what rows are sampled from is written, too.
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
    Draw draw(order);
    token = draw_token(draw, args, r);
    if constexpr (kCuts) {
      if (is_first) cuts[r] = draw.cut();
    }
  } else if constexpr (kCuts) {
    if (is_first) cuts[r].kept = 0;
  }
  if (!is_first) return;
  args.tokens[r] = token;
  args.status[r] = statistics.bad != 0 ? kNotFinite : statistics.best == 0 ? kAllBanned : kDrawn;
}

template <int kBlocksAtOnce, bool kCuts>
void launch(const SampleArgs& args, RowCut* cuts, void* stream) {
  constexpr auto kernel = sample_rows<kBlocksAtOnce, kCuts>;
  const int64_t rows = args.logits.num_rows;
  const ClusterShape shape = cluster_shape<kernel>(rows, args.logits.vocab);
  launch_row_clusters<kernel>(shape, rows, "sample", stream, args, shape.keep, cuts);
}

}  // namespace

void sample(const SampleArgs& args, void* stream) {
  if (args.logits.num_rows == 0) return;
  if (args.logits.num_rows > kMostClusters) {
    launch<2, false>(args, nullptr, stream);
  } else {
    launch<1, false>(args, nullptr, stream);
  }
}

void sample_with_cuts(const SampleArgs& args, RowCut* cuts, void* stream) {
  if (args.logits.num_rows != 0) launch<1, true>(args, cuts, stream);
}

}  // namespace rtp_llm::cuda
