// SPDX-License-Identifier: Apache-2.0
// Activations of gates.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

struct Silu {
  __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};

// x sigmoid(gate), far closer than results of 16 bits are rounded: an exact division and
// exponential cost a memory-bound kernel more than its bytes do.
__device__ inline float quick_gated(float x, float gate) {
  return __fdividef(x, 1.0f + __expf(-gate));
}

// x sigmoid(gate) for a result of type T.
template <class T>
__device__ inline float sigmoid_gated(float x, float gate) {
  if constexpr (sizeof(T) == 2) return quick_gated(x, gate);
  return x / (1.0f + expf(-gate));
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u))
struct GeluTanh {
  __device__ float operator()(float x) const {
    const float u = x * (0.7978845608f + 0.7978845608f * 0.044715f * (x * x));
    return x / (1.0f + expf(-2.0f * u));
  }
};

// 0.5 x erfc(-x / sqrt 2) loses nothing for negative x, unlike 1 + erf.
struct Gelu {
  __device__ float operator()(float x) const { return 0.5f * x * erfcf(-0.7071067812f * x); }
};

}  // namespace rtp_llm::cuda
