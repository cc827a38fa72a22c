// SPDX-License-Identifier: Apache-2.0
// What kernels that work on tiles of registers need beyond vec.h: transposes, many sums at once,
// products of bfloat16 pairs, and powers of two.
//
// Code that includes this lives in namespace RTP_LLM_TILE_ISA: the one of vec.h, or avx512_bf16
// where bfloat16 instructions may be used as well.
#pragma once

#include "rtp_llm/kernels/cpu/vec.h"

#if defined(__AVX512BF16__)
#define RTP_LLM_TILE_ISA avx512_bf16
#else
#define RTP_LLM_TILE_ISA RTP_LLM_ISA
#endif

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
using namespace rtp_llm::cpu::RTP_LLM_ISA;  // NOLINT: the vectors of vec.h
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#if defined(__AVX512F__)
#include "rtp_llm/kernels/cpu/vec_tile_avx512.h"
#elif defined(__AVX2__)
#include "rtp_llm/kernels/cpu/vec_tile_avx2.h"
#else
#include "rtp_llm/kernels/cpu/vec_tile_scalar.h"
#endif

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {

constexpr int kWidth = Vec::kWidth;
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kNegInf = -__builtin_inff();

// visit_float_dtype of the numbers that this instruction set has kernels for. Products of bfloat16
// make a difference to bfloat16 alone: AVX-512's kernels take the others, and are compiled once.
template <class Body>
inline bool visit_tile_dtype(DType dtype, Body&& body) {
  if constexpr (kHasDotBFloat16) {
    body(BFloat16{});
    return dtype == DType::kBFloat16;
  } else {
    return visit_float_dtype(dtype, body);
  }
}

// a * b + sum, of float32 or of pairs of bfloat16 in each lane.
template <bool kPairs>
inline Vec multiply_add(Vec a, Vec b, Vec sum) {
  return kPairs ? dot_bfloat16(a, b, sum) : fma(a, b, sum);
}

// 2^x for x below 128, within 2 units in the last place; 0 for -inf, NaN stays.
inline Vec exp2(Vec x) {
  x = max(Vec::set(-150.0f), x);
  const Vec whole = round(x);
  const Vec part = x - whole;
  Vec y = Vec::set(0.0013264727f);
  y = fma(y, part, Vec::set(0.0096715126f));
  y = fma(y, part, Vec::set(0.0555073374f));
  y = fma(y, part, Vec::set(0.2402224209f));
  y = fma(y, part, Vec::set(0.6931469776f));
  y = fma(y, part, Vec::set(1.0f));
  return scale_by_power_of_two(y, whole);
}

// Through one exponential; the absolute error stays below 2e-7.
inline Vec tanh(Vec x) {
  const Vec e = exp2(min(Vec::set(40.0f), x) * Vec::set(2.0f * kLog2E));
  return Vec::set(1.0f) - Vec::set(2.0f) / (e + Vec::set(1.0f));
}

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
