// SPDX-License-Identifier: Apache-2.0
// The kernel that finds the log-probabilities of rows, and its launch.
#pragma once

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/sampling/launch_row_clusters.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"
#include "rtp_llm/kernels/cuda/sampling/sampling_order.h"

namespace rtp_llm::cuda {

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

// `words`: 64-bit words of scratch for each row.
// Each kBlocksAtOnce is instantiated in a file of its own: one takes about 8 seconds to compile.
template <int kBlocksAtOnce>
void launch_logprobs_of_rows(const TopLogprobsArgs& args, Key* scratch, int words, void* stream) {
  constexpr auto kernel = logprobs_of_rows<kBlocksAtOnce>;
  const int64_t rows = args.logits.num_rows;
  const ClusterShape shape = cluster_shape<kernel>(rows, args.logits.vocab);
  launch_row_clusters<kernel>(shape, rows, "top_logprobs", stream, args, scratch, words,
                              shape.keep);
}

extern template void launch_logprobs_of_rows<1>(const TopLogprobsArgs&, Key*, int, void*);
extern template void launch_logprobs_of_rows<2>(const TopLogprobsArgs&, Key*, int, void*);

}  // namespace rtp_llm::cuda
