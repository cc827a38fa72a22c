// SPDX-License-Identifier: Apache-2.0
// The activation of a gate in the end of a product.
#pragma once

#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/cuda/gated.h"

namespace rtp_llm::cuda {

__device__ inline float activated(float x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return Silu{}(x);
    case Activation::kGelu:
      return Gelu{}(x);
    default:
      return GeluTanh{}(x);
  }
}

}  // namespace rtp_llm::cuda
