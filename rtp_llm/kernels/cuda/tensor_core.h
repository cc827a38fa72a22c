// SPDX-License-Identifier: Apache-2.0
// Warp-wide products of 16-bit numbers, and the conversions that feed them. NVIDIA only.
#pragma once

#include <cuda_fp8.h>

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

// Two 16-bit floats in a register, the first in the low half.
template <class T>
__device__ inline uint32_t pack_pair(float first, float second) {
  T a;
  T b;
  from_floats<T>(first, second, &a, &b);
  return static_cast<uint32_t>(a.bits) | (static_cast<uint32_t>(b.bits) << 16);
}

// c += a b for a tile of 16 x 8 x 16. With g = lane / 4 and t = lane % 4, a lane holds of a the
// pairs of columns (2t, 2t + 1) of row g, the same of row g + 8, then columns (2t + 8, 2t + 9) of
// both; of b rows (2t, 2t + 1) and (2t + 8, 2t + 9) of column g; of c columns (2t, 2t + 1) of rows
// g and g + 8.
template <class T>
__device__ inline void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1);

template <>
__device__ inline void multiply_add<BFloat16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiply_add<Float16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The transpose of an 8 x 8 matrix of which a lane holds columns (2t, 2t + 1) of row g.
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Two e4m3fn floats, the first in the low byte, as 16-bit floats.
__device__ inline uint32_t widen_float8(uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  // No instruction does it, and CUDA's function takes a branch for each. With the bits of a smaller
  // exponent in place a 16-bit float is 2^-8 of the value, subnormal ones too; 480 stands for NaN.
  const uint32_t bits = (pair & 0xffU) | (pair & 0xff00U) << 8;
  const uint32_t small = (bits & 0x00800080U) << 8 | (bits & 0x007f007fU) << 7;
  const __half2 wide = __hmul2(__half2(__half2_raw{static_cast<unsigned short>(small & 0xffffU),
                                                   static_cast<unsigned short>(small >> 16)}),
                               __float2half2_rn(256.0f));
  const uint32_t nan = __hgt2_mask(__habs2(wide), __float2half2_rn(448.0f)) & 0x7fff7fffU;
  const __half2_raw raw = wide;
  return (static_cast<uint32_t>(raw.x) | static_cast<uint32_t>(raw.y) << 16) | nan;
#else
  const __half2_raw both =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return static_cast<uint32_t>(both.x) | (static_cast<uint32_t>(both.y) << 16);
#endif
}

}  // namespace rtp_llm::cuda
