// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/launch_row_clusters.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"
#include "rtp_llm/kernels/cuda/sampling/sampling_order.h"

namespace rtp_llm::cuda {
namespace {

__device__ inline float log_probability(float logit, double log_sum) {
  if (!is_finite(logit)) return kLeastLogprob;
  return fmaxf(static_cast<float>(logit - log_sum), kLeastLogprob);
}

// The logarithm of the sum of exponentials of the finite logits; -inf when there is none.
__device__ inline double log_sum_exp(Order& order, const RowStatistics& statistics) {
  if (statistics.best == 0) return -INFINITY;
  const double sum = static_cast<double>(order.sum()) / order.unit();
  return logit_of(statistics.best) + log(sum);
}

// The k first keys of the row into keys [size], in order, by a cluster that could not sort them in
// shared memory.
__device__ inline void first_keys(const Cluster& cluster, const VocabSlice& slice, Order& order,
                                  int k, Key* keys, int size, int* found) {
  const Key least = order.place_of(Measure::kCount, static_cast<Mass>(k - 1)).key;
  if (cluster.rank() == 0 && thread_index() == 0) *found = 0;
  for (int i = cluster.rank() * thread_count() + thread_index(); i < size - k;
       i += cluster.size() * thread_count()) {
    keys[k + i] = 0;
  }
  sync(cluster);
  int* const next = cluster.of(found, 0);
  for_logits(slice, [&](float x, int i) {
    const Key key = key_of(x, i);
    if (key >= least) keys[atomicAdd(next, 1)] = key;
  });
  sync(cluster);
  if (cluster.rank() == 0) sort_keys(keys, size);
}

template <int kBlocksAtOnce>
__global__ void __launch_bounds__(kBlockThreads, kBlocksAtOnce)
    logprobs_of_rows(TopLogprobsArgs args, Key* scratch, int words, bool keep) {
  __shared__ Workspace shared;
  __shared__ int found;
  const Cluster cluster;
  const RowMemory memory(cluster);
  const int64_t r = blockIdx.x / cluster.size();
  wait_for_previous();
  const int vocab = static_cast<int>(args.logits.vocab);
  const float* const logits = args.logits.row(r);
  const int k = static_cast<int>(args.k);
  VocabSlice slice = slice_of(cluster, logits, vocab);
  const RowStatistics statistics = compute_row_statistics(
      cluster, slice, keep ? memory.logits : nullptr, shared.block_statistics);
  let_next_start();
  const Weighting weighting(logit_of(statistics.best), 1.0f, vocab);
  Order order(cluster, slice, statistics, weighting, shared, memory.parts);
  const double log_sum = log_sum_exp(order, statistics);
  const Key* keys = order.sorted();
  if (k > 0) {
    order.look(Order::kCounts);
    if (k > kFew || !order.sort_first(k)) {
      keys = scratch + r * words;
      first_keys(cluster, slice, order, k, scratch + r * words, words, &found);
    }
  }
  if (cluster.rank() != 0) return;
  const int token = args.tokens[r];
  if (thread_index() == 0) {
    args.chosen[r] =
        token >= 0 && token < vocab ? log_probability(logits[token], log_sum) : kLeastLogprob;
  }
  for (int i = thread_index(); i < k; i += thread_count()) {
    args.ids[r * k + i] = index_of(keys[i]);
    args.values[r * k + i] = log_probability(logit_of(keys[i]), log_sum);
  }
}

// 64-bit words of scratch for each row: k, rounded up to a power of two.
int64_t words_of_row(int64_t k) {
  int64_t words = 1;
  while (words < k) words *= 2;
  return words;
}

}  // namespace

int64_t top_logprobs_scratch(const TopLogprobsArgs& args) {
  return args.logits.num_rows * words_of_row(args.k) * int64_t{sizeof(Key)};
}

RTP_LLM_OPERATOR(top_logprobs, scratch)
void top_logprobs(const TopLogprobsArgs& args, void* scratch, void* stream) {
  const int64_t rows = args.logits.num_rows;
  if (rows == 0) return;
  const int64_t words = words_of_row(args.k);
  if (words > INT32_MAX) throw std::runtime_error("top_logprobs: k is too large for a GPU");
  const ClusterShape shape = cluster_shape<logprobs_of_rows<1>>(rows, args.logits.vocab);
  const auto launch = [&](auto at_once) {
    launch_row_clusters<logprobs_of_rows<decltype(at_once)::value>>(
        shape, rows, "top_logprobs", stream, args, static_cast<Key*>(scratch),
        static_cast<int>(words), shape.keep);
  };
  if (rows > kMaxClusters) {
    launch(std::integral_constant<int, 2>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
}

}  // namespace rtp_llm::cuda
