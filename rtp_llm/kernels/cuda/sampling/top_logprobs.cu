// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

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

constexpr int kDigitBits = 10;
static_assert(kBins == 1 << kDigitBits && kFew >= kBins);

// Of the row's keys that equal `prefix` but for their last shift + bits bits: the bin of the one
// that has `target` of them before it. Bins are numbered by the digit above the last `shift` bits,
// the largest one first.
__device__ inline void find_digit_bin(const Cluster& cluster, const VocabSlice& slice, Key prefix,
                                      int shift, int bits, Mass target, Workspace& shared) {
  uint32_t* const bins = shared.bins.count;
  for (int i = thread_index(); i < kBins; i += thread_count()) bins[i] = 0;
  __syncthreads();
  for_logits(slice, [&](float x, int i) {
    const Key key = key_of(x, i);
    if ((key ^ prefix) >> shift >> bits != 0) return;
    atomicAdd(&bins[kBins - 1 - static_cast<int>((key >> shift) & (kBins - 1))], 1U);
  });
  sync(cluster);
  for (int i = thread_index(); i < kBins; i += thread_count()) {  // over the whole row
    Mass count = 0;
    for (int r = 0; r < cluster.size(); ++r) count += cluster.of(bins, r)[i];
    shared.keys[i] = count;
  }
  sync(cluster);  // all have been read
  find_entry(
      kBins, [&](int i) { return Amount{shared.keys[i], 0}; }, Measure::kCount, target, shared);
}

// The k first keys of the row into keys [size], in order, by a cluster that could not sort them in
// shared memory. Finds the end of the first `count` keys, at least k, a digit at a time until they
// fit. Order::place_of() would add up masses, too: that took more time to compile than all the
// rest.
__device__ inline void first_keys(const Cluster& cluster, const VocabSlice& slice, int k,
                                  Workspace& shared, Key* keys, int size, int* found) {
  Key least = 0;
  Mass before = 0;
  int count = 0;
  int shift = 64;
  do {
    const int bits = min(shift, kDigitBits);
    shift -= bits;
    find_digit_bin(cluster, slice, least, shift, bits, static_cast<Mass>(k - 1) - before, shared);
    least |= static_cast<Key>(kBins - 1 - shared.entry) << shift;
    before += shared.before.count;
    count = static_cast<int>(before + shared.own.count);
  } while (count > size);
  if (cluster.rank() == 0 && thread_index() == 0) *found = 0;
  for (int i = count + cluster.rank() * thread_count() + thread_index(); i < size;
       i += cluster.size() * thread_count()) {
    keys[i] = 0;
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
      first_keys(cluster, slice, k, shared, scratch + r * words, words, &found);
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
template <int kBlocksAtOnce>
void launch_logprobs_of_rows(const TopLogprobsArgs& args, Key* scratch, int words, void* stream) {
  constexpr auto kernel = logprobs_of_rows<kBlocksAtOnce>;
  const int64_t rows = args.logits.num_rows;
  const ClusterShape shape = cluster_shape<kernel>(rows, args.logits.vocab);
  launch_row_clusters<kernel>(shape, rows, "top_logprobs", stream, args, scratch, words,
                              shape.keep);
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
  const auto launch = rows > kMaxClusters ? launch_logprobs_of_rows<2> : launch_logprobs_of_rows<1>;
  launch(args, static_cast<Key*>(scratch), static_cast<int>(words), stream);
}

}  // namespace rtp_llm::cuda
