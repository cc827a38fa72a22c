// SPDX-License-Identifier: Apache-2.0
// The instructions of NVIDIA's sm_90a that kernels use: barriers in shared memory, the copy engine
// (TMA), and products of a warpgroup (wgmma). Only for code that such a GPU runs; see the PTX
// manual for their rules (https://docs.nvidia.com/cuda/parallel-thread-execution/).
#pragma once

#include <cuda.h>

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda::hopper {

constexpr int kWarpgroup = 128;  // threads of four warps that multiply together

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// -- barriers, named by their addresses in shared memory ------------------------------------------

// A phase ends after `arrivals`, and after the bytes that were announced in it have come.
__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Called by the thread that initialised them, before others see them.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Whether the phase of this parity is over.
__device__ inline bool is_over(uint32_t barrier, int parity) {
  int over;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.b32 %0, 1, 0, over;\n"
      "}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over != 0;
}
// Until it is.
__device__ inline void wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@over bra OVER;\n"
      "bra AGAIN;\n"
      "OVER:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// -- what threads of a block do together ----------------------------------------------------------

// Sets the registers of each thread of this warpgroup from now on, out of the whole block's.
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
// A numbered barrier (1 to 15) of `threads` threads; those that only arrive do not wait.
__device__ inline void sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_at(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
// Lets the copy engine and products see what this thread stored in shared memory.
__device__ inline void publish_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// -- the copy engine ------------------------------------------------------------------------------

// The box at (x, y, z) of a tensor into shared memory; its bytes count at the barrier. What lies
// outside of the tensor becomes zeros.
__device__ inline void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                                int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Contiguous bytes, to and from shared memory; sizes and addresses are multiples of 16.
__device__ inline void copy_in(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void copy_out(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// This thread's copy_out() so far become a group.
__device__ inline void end_copies_out() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but the last `kLeft` groups have read their shared memory.
template <int kLeft>
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

// -- products of a warpgroup: d [64, N] += a [64, 16] * b [16, N] ---------------------------------

// A matrix in shared memory in rows of 128 bytes, swizzled as the copy engine does; strides in
// bytes: between the halves of a dimension that lies along rows, and between groups of eight rows.
__device__ inline uint64_t matrix(uint32_t address, int half_stride) {
  constexpr uint64_t kSwizzle128 = 1ULL << 62;
  constexpr uint64_t kEightRows = 1024 >> 4;
  return kSwizzle128 | kEightRows << 32 | static_cast<uint64_t>(half_stride >> 4) << 16 |
         (address & 0x3ffffU) >> 4;
}
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `kOpen` of the groups of products that were ended are still running.
template <int kOpen>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
// Keeps the compiler from moving uses of results across a wait.
template <int kCount>
__device__ inline void pin(float (&results)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(results[i])::"memory");
}

#define RTP_LLM_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RTP_LLM_8(d, i) RTP_LLM_4(d, i), RTP_LLM_4(d, i + 4)
#define RTP_LLM_16(d, i) RTP_LLM_8(d, i), RTP_LLM_8(d, i + 8)
#define RTP_LLM_32(d, i) RTP_LLM_16(d, i), RTP_LLM_16(d, i + 16)
#define RTP_LLM_64(d, i) RTP_LLM_32(d, i), RTP_LLM_32(d, i + 32)
#define RTP_LLM_128(d, i) RTP_LLM_64(d, i), RTP_LLM_64(d, i + 64)
#define RTP_LLM_NAMES_4 "%0,%1,%2,%3"
#define RTP_LLM_NAMES_8 RTP_LLM_NAMES_4 ",%4,%5,%6,%7"
#define RTP_LLM_NAMES_16 RTP_LLM_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define RTP_LLM_NAMES_32 \
  RTP_LLM_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define RTP_LLM_NAMES_64                                                                          \
  RTP_LLM_NAMES_32                                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define RTP_LLM_NAMES_128                                                                         \
  RTP_LLM_NAMES_64                                                                                \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86," \
  "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,"  \
  "%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"    \
  "%126,%127"
/* b is [N, 16], its rows along the summed dimension; without `add` the result replaces d. `count`
   is N / 2, the results of a thread; a_, b_ and c_ are the operand numbers that follow. */
#define RTP_LLM_PRODUCT(T, name, n, count, a_, b_, c_)                                      \
  __device__ inline void multiply(float (&d)[count], uint64_t a, uint64_t b, bool add, T) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #c_                               \
                 ", 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name            \
                 " {" RTP_LLM_NAMES_##count "}, %" #a_ ", %" #b_ ", add, 1, 1, 0, 0;\n}"    \
                 : RTP_LLM_##count(d, 0)                                                    \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));                             \
  }
/* The same with a in registers, two elements in each; always adds. */
#define RTP_LLM_PRODUCT_A(T, name, n, count, a0_, a1_, a2_, a3_, b_, c_)                           \
  __device__ inline void multiply_by_rows(float (&d)[count], const uint32_t (&a)[4], uint64_t b,   \
                                          bool add, T) {                                           \
    asm volatile(                                                                                  \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %" #c_                                               \
        ", 0;\n"                                                                                   \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" RTP_LLM_NAMES_##count \
        "}, {%" #a0_ ",%" #a1_ ",%" #a2_ ",%" #a3_ "}, %" #b_ ", add, 1, 1, 0;\n}"                 \
        : RTP_LLM_##count(d, 0)                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));         \
  }
#define RTP_LLM_PRODUCTS(T, name)                                                                  \
  RTP_LLM_PRODUCT_A(T, name, 16, 8, 8, 9, 10, 11, 12, 13)                                          \
  RTP_LLM_PRODUCT_A(T, name, 32, 16, 16, 17, 18, 19, 20, 21)                                       \
  RTP_LLM_PRODUCT_A(T, name, 64, 32, 32, 33, 34, 35, 36, 37)                                       \
  RTP_LLM_PRODUCT_A(T, name, 128, 64, 64, 65, 66, 67, 68, 69)                                      \
  RTP_LLM_PRODUCT_A(T, name, 256, 128, 128, 129, 130, 131, 132, 133)                               \
  RTP_LLM_PRODUCT(T, name, 16, 8, 8, 9, 10)                                                        \
  RTP_LLM_PRODUCT(T, name, 32, 16, 16, 17, 18)                                                     \
  RTP_LLM_PRODUCT(T, name, 64, 32, 32, 33, 34)                                                     \
  RTP_LLM_PRODUCT(T, name, 128, 64, 64, 65, 66)                                                    \
  /* a in registers, two elements in each; b is [16, N], its rows across. */                       \
  __device__ inline void multiply(float (&d)[64], const uint32_t* a, uint64_t b, T) {              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name                      \
                 " {" RTP_LLM_NAMES_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                    \
                 : RTP_LLM_32(d, 0), RTP_LLM_32(d, 32)                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                            \
  }                                                                                                \
  __device__ inline void multiply(float (&d)[32], const uint32_t* a, uint64_t b, T) {              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" RTP_LLM_NAMES_32 \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                          \
                 : RTP_LLM_32(d, 0)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                            \
  }                                                                                                \
  /* a in shared memory; b is [16, N], its rows across. */                                         \
  __device__ inline void multiply(float (&d)[128], uint64_t a, uint64_t b, T) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name                      \
                 " {" RTP_LLM_NAMES_128 "}, %128, %129, 1, 1, 1, 0, 1;"                            \
                 : RTP_LLM_32(d, 0), RTP_LLM_32(d, 32), RTP_LLM_32(d, 64), RTP_LLM_32(d, 96)       \
                 : "l"(a), "l"(b));                                                                \
  }                                                                                                \
  __device__ inline void multiply(float (&d)[128], const uint32_t* a, uint64_t b, T) {             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name                      \
                 " {" RTP_LLM_NAMES_128 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"              \
                 : RTP_LLM_32(d, 0), RTP_LLM_32(d, 32), RTP_LLM_32(d, 64), RTP_LLM_32(d, 96)       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                            \
  }
RTP_LLM_PRODUCTS(BFloat16, "bf16")
RTP_LLM_PRODUCTS(Float16, "f16")
// The same in FP8: d [64, N] += a [64, 32] * b [N, 32] transposed, both in shared memory.
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
#undef RTP_LLM_128
#undef RTP_LLM_NAMES_4
#undef RTP_LLM_NAMES_8
#undef RTP_LLM_NAMES_16
#undef RTP_LLM_NAMES_32
#undef RTP_LLM_NAMES_64
#undef RTP_LLM_NAMES_128
#undef RTP_LLM_PRODUCT
#undef RTP_LLM_PRODUCT_A
#undef RTP_LLM_PRODUCTS

// Two neighbouring elements of a row of `a`, the first one low.
__device__ inline uint32_t pair(float first, float second, BFloat16) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
__device__ inline uint32_t pair(float first, float second, Float16) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
__device__ inline float power_of_two(float exponent) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(exponent));
  return result;
}

}  // namespace rtp_llm::cuda::hopper
