// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over lanes and blocks of threads; every thread gets the result.
#pragma once

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

// Over `lanes` neighbours (a power of two, at most 32).
template <int lanes = kGroup, class T, class F>
__device__ inline T reduce_group(T value, F combine) {
#pragma unroll
  for (int mask = lanes / 2; mask > 0; mask /= 2) value = combine(value, exchange(value, mask));
  return value;
}

// The same where only these neighbours call it.
template <int lanes, class T, class F>
__device__ inline T reduce_lanes(T value, F combine) {
#pragma unroll
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    value = combine(value, exchange_among<lanes>(value, mask));
  }
  return value;
}

// Reduces over the block, a multiple of 32 threads, in the same order every time.
template <class T, class F>
__device__ inline T reduce_block(T value, T identity, F combine) {
  __shared__ T of_group[kMaxThreads / kGroup];
  value = reduce_group(value, combine);
  const int lane = thread_index() % kGroup;
  if (thread_count() <= kGroup) return value;
  __syncthreads();  // an earlier result may still be read
  if (lane == 0) of_group[thread_index() / kGroup] = value;
  __syncthreads();
  value = lane < thread_count() / kGroup ? of_group[lane] : identity;
  return reduce_group(value, combine);
}

}  // namespace rtp_llm::cuda
