// SPDX-License-Identifier: Apache-2.0
// K-blocks in FP8, and what the blocks of a cluster do together, on sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda::hopper {

// The unit of addresses in matrix() in bytes, so that offsets can be added to them.
constexpr int kMatrixUnit = 16;

// d = a [64, 128] * b [N, 128] transposed, both in rows of 128 bytes; not waited for.
template <int kCount>
__device__ inline void multiply_k_block(float (&d)[kCount], uint64_t a, uint64_t b) {
  constexpr int kStep = 32 / kMatrixUnit;
  begin_products();
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_e4m3(d, a + k * kStep, b + k * kStep, k > 0);
  end_products();
}

// Keeps a value in a register, instead of being computed again where it is used.
__device__ inline void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }

// -- the copy engine with a hint to the L2 cache
// ---------------------------------------------------

// What createpolicy makes for whole lines: leave at once, stay, or neither.
constexpr uint64_t kLeaveFirst = 0x12f0000000000000ULL;
constexpr uint64_t kStay = 0x14f0000000000000ULL;
constexpr uint64_t kNoHint = 0x1000000000000000ULL;

__device__ inline void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                                int z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}
// Copies to the same place in every block of the cluster with its bit set; the bytes count at each
// block's barrier.
__device__ inline void tma_load_multicast(uint16_t blocks, uint32_t to, const CUtensorMap* map,
                                          uint32_t barrier, int x, int y, int z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(policy)
      : "memory");
}

// -- clusters
// --------------------------------------------------------------------------------------

__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The same place in another block's shared memory.
__device__ inline uint32_t in_block(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ inline float4 load_there(uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
// Tells another block that this thread has read what may now be overwritten. For values written
// here it would not do: a release to the cluster is a fence of the whole GPU, which cost as much
// as the products between two of them.
__device__ inline void arrive_there(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// A barrier for all threads of the cluster that have not ended; earlier writes are visible after
// it.
__device__ inline void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// Waits until every thread of the cluster has arrived here or ended; does not wait for stores.
__device__ inline void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

}  // namespace rtp_llm::cuda::hopper
