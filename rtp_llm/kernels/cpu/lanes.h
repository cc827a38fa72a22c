// The vector type of the instruction set that a file is compiled for.
//
// Each attention and sampling kernel is one template body compiled several times with different
// compiler flags. Everything lives in a namespace named after the instruction set, so that the
// linker can never take one set's inline function for another's. Nothing here uses the standard
// library's inline functions for the same reason.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include "rtp_llm/kernels/cpu/lanes_avx512.h"
#elif defined(__AVX2__)
#include "rtp_llm/kernels/cpu/lanes_avx2.h"
#else
#include "rtp_llm/kernels/cpu/lanes_scalar.h"
#endif

namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kNegInf = -__builtin_inff();

// 2^x within 2 units in the last place; 0 for -inf and for x < -149; NaN stays NaN.
inline Vec exp2(Vec x) {
  x = max(set(-150.0f), x);
  const Vec whole = round_even(x);
  const Vec part = sub(x, whole);
  Vec y = set(0.0013264727f);
  y = fma(y, part, set(0.0096715126f));
  y = fma(y, part, set(0.0555073374f));
  y = fma(y, part, set(0.2402224209f));
  y = fma(y, part, set(0.6931469776f));
  y = fma(y, part, set(1.0f));
  return scale_by_power_of_two(y, whole);
}

// tanh through one exponential; the absolute error stays below 2e-7.
inline Vec tanh(Vec x) {
  const Vec e = exp2(mul(min(x, set(40.0f)), set(2.0f * kLog2E)));
  return sub(set(1.0f), div(set(2.0f), add(e, set(1.0f))));
}

}  // namespace rtp_llm::cpu::RTP_LLM_LANES_NAMESPACE
