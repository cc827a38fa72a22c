// SPDX-License-Identifier: Apache-2.0
// The thread block cluster that works on one row, whose blocks see each other's shared memory. On
// GPUs without clusters it is a single block.
#pragma once

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

constexpr int kMaxClusterSize = 16;

#if !defined(__HIPCC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

class Cluster {
 public:
  __device__ int rank() const { return special<0>(); }
  __device__ int size() const { return special<1>(); }

  // A barrier of all the cluster's threads in two halves.
  __device__ void arrive() const { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
  __device__ void wait() const { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

  // The variable in shared memory that block `rank` has where this block has `mine`.
  template <class T>
  __device__ T* of(T* mine, int rank) const {
    T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));
    return there;
  }

 private:
  template <int which>
  __device__ static int special() {
    int value;
    if constexpr (which == 0) {
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
    } else {
      asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(value));
    }
    return value;
  }
};

#else

class Cluster {
 public:
  __device__ int rank() const { return 0; }
  __device__ int size() const { return 1; }
  __device__ void arrive() const {}
  __device__ void wait() const { __syncthreads(); }
  template <class T>
  __device__ T* of(T* mine, int) const {
    return mine;
  }
};

#endif

__device__ inline void sync(const Cluster& cluster) {
  cluster.arrive();
  cluster.wait();
}

}  // namespace rtp_llm::cuda
