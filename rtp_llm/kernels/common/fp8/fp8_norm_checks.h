// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of a norm whose result is block-scaled FP8 and describes them to kernels.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_norm.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// q and scales are not yet filled.
struct Fp8Norm {
  Fp8NormArgs args;
  Tensor q, scales;
};

Fp8Norm fp8_norm(const Tensor& residual, const OptionalTensor& pending, const Tensor& weight,
                 double eps, double offset);

}  // namespace rtp_llm::glue
