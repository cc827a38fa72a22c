// SPDX-License-Identifier: Apache-2.0
// Statistics of a row: its best token, the range of its logits, and whether it is broken.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/cluster.h"
#include "rtp_llm/kernels/cuda/sampling/vocab_slice.h"

namespace rtp_llm::cuda {

// Of a whole row.
struct RowStatistics {
  Key best;     // 0: no logit is finite
  float least;  // the smallest finite logit
  int bad;      // there is a NaN or an infinity
};

// The calling block's slice of a row. Slices begin at multiples of 16 bytes.
__device__ inline VocabSlice slice_of(const Cluster& cluster, const float* row, int vocab) {
  const int share = ((vocab + cluster.size() - 1) / cluster.size() + 3) / 4 * 4;
  const int begin = min(share * cluster.rank(), vocab);
  return {row + begin, begin, min(share, vocab - begin)};
}

// Reads a row once. With `kept` (shared memory) this block's logits are there afterwards, and
// the slice with them.
__device__ inline RowStatistics compute_row_statistics(const Cluster& cluster, VocabSlice& slice,
                                                       float* kept, RowStatistics* of_blocks) {
  float best = -INFINITY;
  float least = INFINITY;
  int at = 0;
  int bad = 0;
  const int size = cluster.size();
  cluster.arrive();
  for_packs<8>(slice, [&](const auto& pack, int index) {
    if (kept != nullptr) store(kept + index - slice.begin, pack);
    constexpr int kWide = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float x = pack.element[i];
      bad |= x < INFINITY ? 0 : 1;
      if (!is_finite(x)) continue;
      least = fminf(least, x);
      if (x > best) {
        best = x;
        at = index + i;
      }
    }
  });
  RowStatistics statistics;
  statistics.best = reduce_block(best > -INFINITY ? key_of(best, at) : 0, Key{0}, Max{});
  statistics.least = -reduce_block(-least, -INFINITY, Max{});
  statistics.bad = reduce_block(bad, 0, Max{});
  cluster.wait();  // all blocks have started
  if (thread_index() < size) cluster.of(of_blocks, thread_index())[cluster.rank()] = statistics;
  sync(cluster);
  for (int r = 0; r < size; ++r) {
    const RowStatistics& other = of_blocks[r];
    statistics.best = Max{}(statistics.best, other.best);
    statistics.least = fminf(statistics.least, other.least);
    statistics.bad |= other.bad;
  }
  if (kept != nullptr) slice.logits = kept;
  return statistics;
}

}  // namespace rtp_llm::cuda
