#include "rtp_llm/kernels/common/philox.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/order_workspace.h"
#include "rtp_llm/kernels/cuda/sampling/row_cut.h"
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

// Probabilities of a row, p, and of its draft, q; float32, rounded in the same way wherever they
// are asked for, so that a draft that was rejected has nothing left of p.
struct BothRows {
  const RejectionSampleArgs& args;
  const float* const logits;
  const RowCut& cut;
  const DraftRow& draft;
  const float p_rate, q_rate;

  __device__ BothRows(const RejectionSampleArgs& args, int64_t r, const RowCut& cut,
                      const DraftRow& draft)
      : args(args),
        logits(args.sample.logits.row(r)),
        cut(cut),
        draft(draft),
        p_rate(static_cast<float>(1.0 / static_cast<double>(cut.kept))),
        q_rate(static_cast<float>(1.0 / static_cast<double>(draft.mass))) {}

  __device__ float p(int i) const {
    const float x = logits[i];
    return __fmul_rn(static_cast<float>(cut(is_finite(x) ? x : -INFINITY, i)), p_rate);
  }
  __device__ float q(int i) const {
    const int64_t column = args.column(i);
    if (column < 0 || column >= args.draft_logits.vocab) return 0.0f;
    const float x = draft.logits[column];
    return __fmul_rn(static_cast<float>(draft.weighting(is_finite(x) ? x : -INFINITY)), q_rate);
  }
  // max(p - q, 0) as a multiple of what weights are.
  __device__ Mass rest(int i) const {
    return static_cast<Mass>(fmaxf(p(i) - q(i), 0.0f) * cut.weighting.unit);
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

// A token by what is left of p where q is taken from it, or -1: nothing is.
__device__ inline int draw_rest(const BothRows& both, int vocab, double uniform,
                                Workspace& shared) {
  __shared__ Mass of_segments[kSegments];
  const int share = (vocab + kSegments - 1) / kSegments;
  const int segment = thread_index() / kGroup;
  const int end = min((segment + 1) * share, vocab);
  constexpr int kAhead = 8;
  Mass sum = 0;
  int i = segment * share + thread_index() % kGroup;
  for (; i + (kAhead - 1) * kGroup < end; i += kAhead * kGroup) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) sum += both.rest(i + a * kGroup);
  }
  for (; i < end; i += kGroup) sum += both.rest(i);
  sum = reduce_group(sum, Sum{});
  if (thread_index() % kGroup == 0) of_segments[segment] = sum;
  __syncthreads();
  Mass total = 0;
  for (int s = 0; s < kSegments; ++s) total += of_segments[s];
  if (total == 0) return -1;
  Mass target = static_cast<Mass>(uniform * static_cast<double>(total));
  target = target < total ? target : total - 1;
  int found = 0;
  while (target >= of_segments[found]) target -= of_segments[found++];
  const int begin = found * share;
  find_entry(
      min(share, vocab - begin), [&](int at) { return Amount{0, both.rest(begin + at)}; },
      Measure::kMass, target, shared);
  return begin + shared.entry;
}

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
  if (!(accept * static_cast<double>(both.q(token)) < static_cast<double>(both.p(token)))) {
    verified = draw_rest(both, vocab, philox_uniform(seed, step), shared);
  }
  if (thread_index() == 0 && verified >= 0) sample.tokens[r] = verified;
}

}  // namespace

int64_t rejection_sample_bytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(RowCut)); }

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
