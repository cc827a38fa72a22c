// SPDX-License-Identifier: Apache-2.0
// Activations of vectors.
#pragma once

#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

inline Vec sigmoid(Vec x) {
  const Vec one = Vec::set(1.0f);
  return one / (one + exp(Vec::zero() - x));
}

struct Silu {
  Vec operator()(Vec x) const { return x * sigmoid(x); }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2u)
struct GeluTanh {
  Vec operator()(Vec x) const {
    const Vec u = x * fma(x * x, Vec::set(0.7978845608f * 0.044715f), Vec::set(0.7978845608f));
    return x * sigmoid(u + u);
  }
};

// 0.5 x erfc(-x / sqrt 2), with formula 7.1.26 of Abramowitz and Stegun (error below 1.5e-7) for
// erfc of the magnitude.
struct Gelu {
  Vec operator()(Vec x) const {
    const Vec one = Vec::set(1.0f);
    const Vec z = abs(x) * Vec::set(0.7071067812f);
    const Vec t = one / fma(z, Vec::set(0.3275911f), one);
    Vec p = Vec::set(1.061405429f);
    p = fma(p, t, Vec::set(-1.453152027f));
    p = fma(p, t, Vec::set(1.421413741f));
    p = fma(p, t, Vec::set(-0.284496736f));
    p = fma(p, t, Vec::set(0.254829592f));
    const Vec erfc = p * t * exp(Vec::zero() - z * z);
    // erfc / 2 for negative x, 1 - erfc / 2 for the others.
    const Vec tail = Vec::set(0.5f) * erfc;
    const Vec half = Vec::set(0.5f);
    return x * (half + copysign(half - tail, x));
  }
};

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_ISA
