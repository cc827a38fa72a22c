#include "rtp_llm/kernels/cuda/sampling.h"

#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling_order.h"

namespace rtp_llm::cuda {
namespace {

// Masses of prefixes of a row's order, and the token at a place of it.
class Draw {
 public:
  __device__ Draw(const RowView& row, Workspace& shared) : row_(row), shared_(shared) {}

  // Keep the `count` first tokens.
  __device__ void keep_first(int64_t count) {
    if (count < row_.vocab) keep_up_to(place_of(Measure::kCount, static_cast<Mass>(count - 1)));
  }

  // Keep the fewest first tokens that have a share of the mass kept so far; at least one.
  __device__ void keep_share(float share) {
    if (kept_ == 0) kept_ = mass_kept();
    const double wanted = ceil(static_cast<double>(share) * static_cast<double>(kept_));
    const Mass last = wanted > 1.0 ? static_cast<Mass>(wanted) - 1 : 0;
    keep_up_to(place_of(Measure::kMass, last < kept_ ? last : kept_ - 1));
  }

  // Keep the tokens with at least this weight in relation to the best one.
  __device__ void keep_weight(float least) {
    least_weight_ = static_cast<Mass>(ceilf(least * row_.weighting.unit));
    kept_ = mass_kept();
  }

  __device__ int token(double uniform) {
    if (kept_ == 0) kept_ = mass_kept();
    const Mass target = static_cast<Mass>(uniform * static_cast<double>(kept_));
    return index_of(place_of(Measure::kMass, target < kept_ ? target : kept_ - 1).key);
  }

 private:
  __device__ Place place_of(Measure measure, Mass target) const {
    return find_place(row_, measure, target, shared_);
  }

  __device__ void keep_up_to(const Place& last) {
    least_ = last.key > least_ ? last.key : least_;
    kept_ = last.before.mass + row_.weighting(row_.logits[index_of(last.key)]);
  }

  __device__ Mass mass_kept() const {
    Mass sum = 0;
    for_logits(row_.logits, row_.vocab, [&](float x, int i) {
      const Mass weight = row_.weighting(x);
      if (key_of(x, i) >= least_ && weight >= least_weight_) sum += weight;
    });
    return reduce_block(sum, Mass{0}, Sum{});
  }

  const RowView& row_;
  Workspace& shared_;
  Key least_ = 0;
  Mass least_weight_ = 0;
  Mass kept_ = 0;  // 0: not known yet, since the best token always is kept
};

__global__ void __launch_bounds__(kMaxThreads) sample_rows(SampleArgs args) {
  __shared__ Workspace shared;
  const int64_t r = blockIdx.x;
  const float* const logits = args.logits.row(r);
  const int vocab = static_cast<int>(args.logits.vocab);
  Key best = 0;
  int bad = 0;
  for_logits(logits, vocab, [&](float x, int i) {
    bad |= x < INFINITY ? 0 : 1;
    const Key key = key_of(x, i);
    best = key > best ? key : best;
  });
  best = reduce_block(best, Key{0}, Max{});
  bad = reduce_block(bad, 0, Max{});
  int token = index_of(best);
  const bool none = !is_finite(logits[token]);
  const bool ok = bad == 0 && !none;
  const float temperature = args.temperature[r];
  const int top_k = args.top_k[r];
  if (none) token = 0;
  if (ok && temperature > 0.0f && top_k != 1) {
    const RowView row{logits, vocab, Weighting(logits[token], temperature, vocab)};
    start(shared);
    Draw draw(row, shared);
    if (top_k > 0) draw.keep_first(top_k);
    if (args.top_p[r] < 1.0f) draw.keep_share(args.top_p[r]);
    if (args.min_p[r] > 0.0f) draw.keep_weight(args.min_p[r] < 1.0f ? args.min_p[r] : 1.0f);
    token = draw.token(
        philox_uniform(static_cast<uint64_t>(args.seeds[r]), static_cast<uint64_t>(args.steps[r])));
  }
  if (thread_index() != 0) return;
  args.tokens[r] = token;
  args.ok[r] = ok;
}

}  // namespace

void sample(const SampleArgs& args, void* stream) {
  if (args.logits.num_rows == 0) return;
  sample_rows<<<blocks(args.logits.num_rows, "sample"), kMaxThreads, 0,
                static_cast<Stream>(stream)>>>(args);
  check_launch("sample");
}

}  // namespace rtp_llm::cuda
