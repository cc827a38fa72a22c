// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/common/sampling/rejection.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/order_workspace.h"
#include "rtp_llm/kernels/cuda/sampling/row_cut.h"
#include "rtp_llm/kernels/cuda/sampling/row_draw.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kVerifyThreads = 1024;
constexpr int kSegments = kVerifyThreads / kGroup;  // of a row: a group of lanes has one

// What a draft was sampled from.
struct DraftRow {
  const float* logits;
  Weighting weighting;
  Mass mass;
};

// A number in two float32, the second of which is what rounding left of the first.
struct Pair {
  float high, low;

  __device__ static Pair of(double x) {
    const float high = static_cast<float>(x);
    return {high, static_cast<float>(x - static_cast<double>(high))};
  }
  __device__ Pair times(float x) const {
    const float product = __fmul_rn(x, high);
    return {product, fmaf(x, low, fmaf(x, high, -product))};
  }
  __device__ double value() const { return static_cast<double>(high) + static_cast<double>(low); }
};

// Probabilities of a row, p, and of its draft, q, as multiples of what weights are. In pairs, for
// where the draft is good little is left of their difference.
struct BothRows {
  const RejectionSampleArgs& args;
  const float* const logits;
  const int token;  // the draft
  const RowCut& cut;
  const DraftRow& draft;
  const Pair p_rate, q_rate;

  __device__ BothRows(const RejectionSampleArgs& args, int64_t r, const RowCut& cut,
                      const DraftRow& draft)
      : args(args),
        logits(args.sample.logits.row(r)),
        token(args.drafts[r]),
        cut(cut),
        draft(draft),
        p_rate(Pair::of(cut.weighting.unit / static_cast<double>(cut.kept))),
        q_rate(Pair::of(cut.weighting.unit / static_cast<double>(draft.mass))) {}

  __device__ Pair p(int i) const {
    const float x = logits[i];
    return p_rate.times(cut.fraction(is_finite(x) ? x : -INFINITY, i));
  }
  __device__ Pair q(int i) const {
    const int64_t column = args.column(i);
    if (column < 0 || column >= args.draft_logits.vocab) return {0.0f, 0.0f};
    const float x = draft.logits[column];
    return q_rate.times(draft.weighting.fraction(is_finite(x) ? x : -INFINITY));
  }
  // max(p - q, 0), in which a draft that was rejected has no part.
  __device__ float rest(int i) const {
    const Pair own = p(i);
    const Pair theirs = q(i);
    const float left = (own.high - theirs.high) + (own.low - theirs.low);
    return i == token ? 0.0f : fmaxf(left, 0.0f);
  }
};

// False where the draft was no random choice: its row has NaN, +inf or nothing finite.
__device__ inline bool read_draft_row(const RejectionSampleArgs& args, int64_t r, DraftRow* draft) {
  const int vocab = static_cast<int>(args.draft_logits.vocab);
  const VocabSlice slice{args.draft_logits.row(r), 0, vocab};
  float best = -INFINITY;
  int bad = 0;
  for_packs<8>(slice, [&](const auto& pack, int) {
    constexpr int kWide = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float x = pack.element[i];
      bad |= x < INFINITY ? 0 : 1;
      best = fmaxf(best, x);
    }
  });
  best = reduce_block(best, -INFINITY, Max{});
  if (reduce_block(bad, 0, Max{}) != 0 || best == -INFINITY) return false;
  const Weighting weighting(best, args.sample.temperature[r], vocab);
  Mass mass = 0;
  for_logits(slice, [&](float x, int) { mass += weighting(x); });
  *draft = {slice.logits, weighting, reduce_block(mass, Mass{0}, Sum{})};
  return true;
}

// Draws a token by what is left of p where q is taken from it.
class Rest {
 public:
  __device__ Rest(const BothRows& both, int vocab, Workspace& shared)
      : both_(both), vocab_(vocab), share_((vocab + kSegments - 1) / kSegments), shared_(shared) {}

  // -1: nothing is left.
  __device__ int draw(double uniform) {
    Mass total = sum_segments();
    // Hardly anything, which is rare as such a draft is hardly ever rejected: in finer numbers.
    if (static_cast<float>(total) < both_.cut.weighting.unit * kLittle) {
      float most = 0.0f;
      for_own([&](int i) { most = fmaxf(most, both_.rest(i)); });
      scale_ = fminf(both_.cut.weighting.unit / reduce_block(most, 0.0f, Max{}), 3.4e38f);
      total = sum_segments();
    }
    if (total == 0) return -1;
    Mass target = drawn_from(total, uniform);
    int found = 0;
    while (target >= shared_.segments[found]) target -= shared_.segments[found++];
    const int begin = found * share_;
    find_entry(
        min(share_, vocab_ - begin), [&](int at) { return Amount{0, mass(begin + at)}; },
        Measure::kMass, target, shared_);
    return begin + shared_.entry;
  }

 private:
  static constexpr float kLittle = 1.0f / 1024;

  __device__ Mass mass(int i) const { return static_cast<Mass>(both_.rest(i) * scale_); }

  // body(index) for the thread's tokens of its group's segment.
  template <class Body>
  __device__ void for_own(Body body) const {
    const int segment = thread_index() / kGroup;
    const int end = min((segment + 1) * share_, vocab_);
    constexpr int kAhead = 8;
    int i = segment * share_ + thread_index() % kGroup;
    for (; i + (kAhead - 1) * kGroup < end; i += kAhead * kGroup) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) body(i + a * kGroup);
    }
    for (; i < end; i += kGroup) body(i);
  }

  // Leaves the segments' sums in the workspace; returns that of all.
  __device__ Mass sum_segments() {
    Mass sum = 0;
    for_own([&](int i) { sum += mass(i); });
    sum = reduce_group(sum, Sum{});
    __syncthreads();  // earlier sums have been read
    if (thread_index() % kGroup == 0) shared_.segments[thread_index() / kGroup] = sum;
    __syncthreads();
    Mass total = 0;
    for (int s = 0; s < kSegments; ++s) total += shared_.segments[s];
    return total;
  }

  const BothRows& both_;
  const int vocab_, share_;
  Workspace& shared_;
  float scale_ = 1.0f;
};

// A block for each row, whose token of `sample` stays where there is no draft to verify.
__global__ void __launch_bounds__(kVerifyThreads)
    verify_rows(RejectionSampleArgs args, const RowCut* cuts) {
  __shared__ Workspace shared;
  const SampleArgs& sample = args.sample;
  const int64_t r = blockIdx.x;
  const int vocab = static_cast<int>(sample.logits.vocab);
  const int token = args.drafts[r];
  const RowCut cut = cuts[r];
  if (token < 0 || token >= vocab || cut.kept == 0) return;
  DraftRow draft{nullptr, cut.weighting, 0};
  if (!read_draft_row(args, r, &draft)) return;
  const BothRows both(args, r, cut, draft);
  const auto seed = static_cast<uint64_t>(sample.seeds[r]);
  const auto step = static_cast<uint64_t>(sample.steps[r]);
  const double accept = philox_open_uniform(seed, step + kAcceptSteps);
  int verified = token;
  if (!(accept * both.q(token).value() < both.p(token).value())) {
    verified = Rest(both, vocab, shared).draw(philox_uniform(seed, step));
  }
  if (thread_index() == 0 && verified >= 0) sample.tokens[r] = verified;
}

}  // namespace

int64_t rejection_sample_scratch(const RejectionSampleArgs& args) {
  return args.sample.logits.num_rows * static_cast<int64_t>(sizeof(RowCut));
}

RTP_LLM_OPERATOR(rejection_sample, scratch)
void rejection_sample(const RejectionSampleArgs& args, void* scratch, void* stream) {
  const int64_t rows = args.sample.logits.num_rows;
  if (rows == 0) return;
  auto* const cuts = static_cast<RowCut*>(scratch);
  sample_with_cuts(args.sample, cuts, stream);
  const dim3 grid(blocks(rows, "rejection_sample"));
  verify_rows<<<grid, kVerifyThreads, 0, static_cast<Stream>(stream)>>>(args, cuts);
  check_launch("rejection_sample");
}

}  // namespace rtp_llm::cuda
