// SPDX-License-Identifier: Apache-2.0
// Vectors of float32 for kernels that are compiled once per instruction set (*_kernel.cc).
//
// The flags of the compilation choose the namespace (RTP_LLM_ISA) and the width: scalar (1), avx2
// (8) or avx512 (16). Everything that such a file instantiates must live in that namespace: a
// template shared between them could be merged by the linker to the AVX-512 copy, and then crash on
// a machine without it. For the same reason kernels use no std:: function templates in loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/common/operator.h"

#if defined(__AVX512F__)
#define RTP_LLM_ISA avx512
#include "rtp_llm/kernels/cpu/vec_avx512.h"
#elif defined(__AVX2__)
#define RTP_LLM_ISA avx2
#include "rtp_llm/kernels/cpu/vec_avx2.h"
#else
#define RTP_LLM_ISA scalar
#include "rtp_llm/kernels/cpu/vec_scalar.h"
#endif

namespace rtp_llm::cpu::RTP_LLM_ISA {

// body(offset, count) over [0, size): full vectors first, then one rest with count < kWidth.
template <class Body>
inline void for_vectors(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + Vec::kWidth <= size; i += Vec::kWidth) body(i, Vec::kWidth);
  if (i < size) body(i, static_cast<int>(size - i));
}

// Within about 2 units in the last place; 0 below -104, at most the largest float32, NaN stays.
inline Vec exp(Vec x) {
  // A NaN as the second operand of min and max is kept.
  const Vec limited = min(Vec::set(88.72283f), max(Vec::set(-104.0f), x));
  const Vec n = round(limited * Vec::set(1.44269504f));
  // ln 2 in two parts, the first of which is exact in few bits.
  Vec r = fma(n, Vec::set(-0.693359375f), limited);
  r = fma(n, Vec::set(2.12194440e-4f), r);
  Vec p = Vec::set(1.9875691500e-4f);
  p = fma(p, r, Vec::set(1.3981999507e-3f));
  p = fma(p, r, Vec::set(8.3334519073e-3f));
  p = fma(p, r, Vec::set(4.1665795894e-2f));
  p = fma(p, r, Vec::set(1.6666665459e-1f));
  p = fma(p, r, Vec::set(5.0000001201e-1f));
  p = fma(p, r * r, r + Vec::set(1.0f));
  return scale_by_power_of_two(p, n);
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
