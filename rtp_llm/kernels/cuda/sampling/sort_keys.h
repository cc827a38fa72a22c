// SPDX-License-Identifier: Apache-2.0
// Sorting keys within a block of threads.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/vocab_slice.h"

namespace rtp_llm::cuda {

// Bitonic sort, largest first; `size` is a power of two.
__device__ inline void sort_keys(Key* keys, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int i = thread_index(); i < size / 2; i += thread_count()) {
        const int first = 2 * i - (i & (apart - 1));
        const Key a = keys[first];
        const Key b = keys[first + apart];
        if ((a < b) != ((first & run) == 0)) continue;
        keys[first] = b;
        keys[first + apart] = a;
      }
    }
  }
  __syncthreads();
}

// The same for at most twice as many keys as threads, and at least 64: each thread has two, and
// neighbours exchange theirs without shared memory.
__device__ inline void sort_few_keys(Key* keys, int size) {
  const int t = thread_index();
  const bool used = 2 * t < size;
  Key a = used ? keys[2 * t] : 0;
  Key b = used ? keys[2 * t + 1] : 0;
  for (int run = 2; run <= size; run *= 2) {
    const bool falling = ((2 * t) & run) == 0;
    for (int lanes = run / 4; lanes > 0; lanes /= 2) {
      Key other_a, other_b;
      if (lanes < kGroup) {
        other_a = exchange(a, lanes);
        other_b = exchange(b, lanes);
      } else {
        if (used) {
          keys[2 * t] = a;
          keys[2 * t + 1] = b;
        }
        __syncthreads();
        other_a = used ? keys[2 * (t ^ lanes)] : 0;
        other_b = used ? keys[2 * (t ^ lanes) + 1] : 0;
        __syncthreads();
      }
      const bool larger = ((t & lanes) == 0) == falling;
      a = (a < other_a) == larger ? other_a : a;
      b = (b < other_b) == larger ? other_b : b;
    }
    const bool swapped = (a < b) == falling;
    const Key first = swapped ? b : a;
    b = swapped ? a : b;
    a = first;
  }
  if (used) {
    keys[2 * t] = a;
    keys[2 * t + 1] = b;
  }
  __syncthreads();
}

// The same for at most as many keys as threads: each thread finds the rank of one.
__device__ inline void rank_keys(Key* keys, int count) {
  const int i = thread_index();
  const Key own = i < count ? keys[i] : 0;
  int rank = 0;
  if (i < count) {
#pragma unroll 4
    for (int j = 0; j < count; ++j) rank += keys[j] > own ? 1 : 0;
  }
  __syncthreads();
  if (i < count) keys[rank] = own;
  __syncthreads();
}

}  // namespace rtp_llm::cuda
