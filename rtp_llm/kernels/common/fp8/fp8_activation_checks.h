// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of activations as block-scaled FP8 and describes them to kernels.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_activation.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// x as q and scales: the results of fp8_quantize and silu_and_mul_fp8, not yet filled.
struct Fp8Activation {
  Fp8ActivationArgs args;
  Tensor q, scales;
};

// `gated`: a row of x is the gate half, then the up half.
Fp8Activation fp8_activation(const Tensor& x, const OptionalTensor& masked_m, bool gated,
                             const char* what);

}  // namespace rtp_llm::glue
