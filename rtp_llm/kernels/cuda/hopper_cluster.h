// Products of a warpgroup in FP8 and what the blocks of a cluster do together, on sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda::hopper {

// -- products: d [64, N] += a [64, 32] * b [N, 32] transposed, both in shared memory
// ---------------

#define RTP_LLM_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RTP_LLM_8(d, i) RTP_LLM_4(d, i), RTP_LLM_4(d, i + 4)
#define RTP_LLM_16(d, i) RTP_LLM_8(d, i), RTP_LLM_8(d, i + 8)
#define RTP_LLM_32(d, i) RTP_LLM_16(d, i), RTP_LLM_16(d, i + 16)
#define RTP_LLM_64(d, i) RTP_LLM_32(d, i), RTP_LLM_32(d, i + 32)
#define RTP_LLM_NAMES_4 "%0,%1,%2,%3"
#define RTP_LLM_NAMES_8 RTP_LLM_NAMES_4 ",%4,%5,%6,%7"
#define RTP_LLM_NAMES_16 RTP_LLM_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define RTP_LLM_NAMES_32 \
  RTP_LLM_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define RTP_LLM_NAMES_64                                                                          \
  RTP_LLM_NAMES_32                                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
// Without `add` the result replaces d. `count` is N / 2, the results of a thread; a, b and c are
// the three numbers behind.
#define RTP_LLM_E4M3(n, count, a_, b_, c_)                                                    \
  __device__ inline void multiply_e4m3(float (&d)[count], uint64_t a, uint64_t b, bool add) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #c_                                 \
                 ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n                                       \
                 "k32.f32.e4m3.e4m3 {" RTP_LLM_NAMES_##count "}, %" #a_ ", %" #b_             \
                                                             ", add, 1, 1;\n}"                \
                 : RTP_LLM_##count(d, 0)                                                      \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));                               \
  }
RTP_LLM_E4M3(8, 4, 4, 5, 6)
RTP_LLM_E4M3(16, 8, 8, 9, 10)
RTP_LLM_E4M3(32, 16, 16, 17, 18)
RTP_LLM_E4M3(64, 32, 32, 33, 34)
RTP_LLM_E4M3(128, 64, 64, 65, 66)
#undef RTP_LLM_E4M3
#undef RTP_LLM_4
#undef RTP_LLM_8
#undef RTP_LLM_16
#undef RTP_LLM_32
#undef RTP_LLM_64
#undef RTP_LLM_NAMES_4
#undef RTP_LLM_NAMES_8
#undef RTP_LLM_NAMES_16
#undef RTP_LLM_NAMES_32
#undef RTP_LLM_NAMES_64

// Addresses of matrix() count in so many bytes, so that offsets can be added to it.
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
// To the same place in every block of the cluster whose bit is set; the bytes count at the barrier
// of each.
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
// Every thread of the cluster that has not ended; what they wrote before is seen behind it.
__device__ inline void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// Every thread of the cluster came here or ended, whatever it wrote: waits for no store.
__device__ inline void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

}  // namespace rtp_llm::cuda::hopper
