// SPDX-License-Identifier: Apache-2.0
// 32 rows of weights in MXFP4 as operands of matrix instructions: decoded in registers, never in
// memory.
#pragma once

#include "rtp_llm/kernels/cuda/moe/mxfp4_experts.h"
#include "rtp_llm/kernels/cuda/tensor_core.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kTiles = 2;  // of 16 weight rows, that a warp multiplies
constexpr int kWeightRows = 16 * kTiles;
constexpr int kStepColumns = 64;  // columns of a step: two blocks of MXFP4
constexpr int kStepBytes = kTiles * kGroup * 16;
constexpr int kStepScales = kTiles * 8 * 4;

// The product of two pairs of bfloat16; subnormal numbers are kept.
__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t product;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000U));
#endif
  return product;
}

// The operands of an instruction: a word of codes, and the exponents of which those of `block`
// hold.
__device__ inline void decode_mxfp4(uint32_t word, uint32_t scales, int block, uint32_t (&a)[4]) {
  // A code as the highest bits of a bfloat16 without a bias: 2^-126 of its value.
  constexpr uint32_t kCode = 0x81c081c0U;
  a[0] = word & kCode;
  a[1] = (word << 3) & kCode;
  a[2] = (word << 6) & kCode;
  a[3] = ((word << 1) & 0x80008000U) | ((word >> 4) & 0x00c000c0U) | ((word >> 5) & 0x01000100U);
  const uint32_t first = __byte_perm(scales, 0, block == 0 ? 0x4040U : 0x4141U) << 7;
  const uint32_t second = __byte_perm(scales, 0, block == 0 ? 0x4242U : 0x4343U) << 7;
  a[0] = multiply_pairs(a[0], first);
  a[1] = multiply_pairs(a[1], second);
  a[2] = multiply_pairs(a[2], first);
  a[3] = multiply_pairs(a[3], second);
}

// Where the 32 weight rows from `row` on are.
struct Mxfp4Panel {
  const uint8_t* codes;
  const uint8_t* scales;

  __device__ Mxfp4Panel(const Mxfp4ExpertsArgs& args, int expert, int64_t row) {
    const int64_t step = (expert * args.n + row) / kWeightRows * (args.k / kStepColumns);
    codes = static_cast<const uint8_t*>(args.weight) + step * kStepBytes;
    scales = static_cast<const uint8_t*>(args.scales) + step * kStepScales;
  }
};

// What a lane multiplies in a step: of each tile rows lane / 4 and lane / 4 + 8, columns
// 8 (lane % 4) to + 7 of both blocks.
struct Mxfp4Step {
  uint4 codes[kTiles];
  uint32_t scales[kTiles];  // a byte for each block of the first row, then of the second

  __device__ void load(const Mxfp4Panel& panel, int step) {
    const int lane = thread_index() % kGroup;
    const uint8_t* const codes_at = panel.codes + step * kStepBytes + lane * 16;
    const uint8_t* const scales_at = panel.scales + step * kStepScales + lane / 4 * 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(codes[tile].x), "=r"(codes[tile].y), "=r"(codes[tile].z),
                     "=r"(codes[tile].w)
                   : "l"(codes_at + tile * kGroup * 16));
      asm volatile("ld.global.nc.u32 %0, [%1];"
                   : "=r"(scales[tile])
                   : "l"(scales_at + tile * 8 * 4));
    }
  }

  // The operands of a tile's instruction `i`, of four in a step: columns 4 i to 4 i + 3 of the
  // lane.
  __device__ void decode(int tile, int i, uint32_t (&a)[4]) const {
    const uint4& all = codes[tile];
    const uint32_t word = i == 0 ? all.x : i == 1 ? all.y : i == 2 ? all.z : all.w;
    decode_mxfp4(word, scales[tile], i / 2, a);
  }
};

// The row of x that entry `place` multiplies.
__device__ inline int64_t source_row(const Mxfp4ExpertsArgs& args, int place) {
  return args.rows == nullptr ? place : args.rows[place] / args.top_k;
}

// What becomes of a row of the gate and its row of up.
__device__ inline float gated(const Mxfp4ExpertsArgs& args, float gate, float up) {
  gate = fminf(gate, args.limit);
  up = fminf(fmaxf(up, -args.limit), args.limit);
  return __fdividef(gate, 1.0f + __expf(-args.alpha * gate)) * (up + 1.0f);
}

}  // namespace
}  // namespace rtp_llm::cuda
