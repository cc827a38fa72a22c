#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling.h"
#include "rtp_llm/kernels/cuda/sampling_order.h"

namespace rtp_llm::cuda {
namespace {

// The logarithm of the sum of exponentials of the finite logits; -inf when there is none.
__device__ inline double log_sum_exp(const float* logits, int vocab) {
  float best = -INFINITY;
  for_logits(logits, vocab, [&](float x, int) {
    if (is_finite(x)) best = fmaxf(best, x);
  });
  best = reduce_block(best, -INFINITY, Max{});
  double sum = 0.0;
  for_logits(logits, vocab, [&](float x, int) {
    if (is_finite(x)) sum += expf(x - best);
  });
  sum = reduce_block(sum, 0.0, Sum{});
  return sum > 0.0 ? best + log(sum) : -INFINITY;
}

__device__ inline float log_probability(float logit, double log_sum) {
  if (!is_finite(logit)) return kLeastLogprob;
  return fmaxf(static_cast<float>(logit - log_sum), kLeastLogprob);
}

// The k first keys of the row, in order, and smaller ones behind them up to `size`.
__device__ inline void first_keys(const RowView& row, int k, Key* keys, int size,
                                  Workspace& shared) {
  __shared__ int found;
  const Key least = find_place(row, Measure::kCount, static_cast<Mass>(k - 1), shared).key;
  if (thread_index() == 0) found = 0;
  for (int i = thread_index(); i < size; i += thread_count()) keys[i] = 0;
  __syncthreads();
  for_logits(row.logits, row.vocab, [&](float x, int i) {
    const Key key = key_of(x, i);
    if (key >= least) keys[atomicAdd(&found, 1)] = key;
  });
  sort_keys(keys, size);
}

__global__ void __launch_bounds__(kMaxThreads)
    logprobs_of_rows(TopLogprobsArgs args, Key* scratch, int words) {
  __shared__ Workspace shared;
  const int64_t r = blockIdx.x;
  const int vocab = static_cast<int>(args.logits.vocab);
  // By count alone: nothing weighs anything.
  const RowView row{args.logits.row(r), vocab, Weighting(INFINITY, 1.0f, vocab)};
  const double log_sum = log_sum_exp(row.logits, vocab);
  const int token = args.tokens[r];
  if (thread_index() == 0) {
    args.chosen[r] =
        token >= 0 && token < vocab ? log_probability(row.logits[token], log_sum) : kLeastLogprob;
  }
  const int k = static_cast<int>(args.k);
  if (k == 0) return;
  start(shared);
  Key* const keys = scratch + r * words;
  first_keys(row, k, keys, words, shared);
  for (int i = thread_index(); i < k; i += thread_count()) {
    const int id = index_of(keys[i]);
    args.ids[r * k + i] = id;
    args.values[r * k + i] = log_probability(row.logits[id], log_sum);
  }
}

}  // namespace

int64_t top_logprobs_words(int64_t k) {
  int64_t words = 1;
  while (words < k) words *= 2;
  return words;
}

void top_logprobs(const TopLogprobsArgs& args, void* scratch, void* stream) {
  if (args.logits.num_rows == 0) return;
  const int64_t words = top_logprobs_words(args.k);
  if (words > INT32_MAX) throw std::runtime_error("top_logprobs: k is too large for a GPU");
  logprobs_of_rows<<<blocks(args.logits.num_rows, "top_logprobs"), kMaxThreads, 0,
                     static_cast<Stream>(stream)>>>(args, static_cast<Key*>(scratch),
                                                    static_cast<int>(words));
  check_launch("top_logprobs");
}

}  // namespace rtp_llm::cuda
