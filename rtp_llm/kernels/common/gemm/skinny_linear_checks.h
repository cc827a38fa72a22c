// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of a linear layer of few rows and describes them to kernels.
#pragma once

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// What kernels take: at most so many rows, weights whose sizes are multiples of these.
struct SkinnyLimits {
  int64_t rows;
  int64_t columns;
  int64_t outputs;
};

// `out`, its stride, the norm and the end are left to the caller.
SkinnyLinearArgs skinny_linear_args(const Tensor& x, const Tensor& weight,
                                    const OptionalTensor& bias, const SkinnyLimits& limits);

// Sets the norm of x.
void set_norm(SkinnyLinearArgs& args, const Tensor& x, const Tensor& norm_weight, double eps,
              double offset);

// Sets an end that adds to `residual`.
void set_residual(SkinnyLinearArgs& args, const Tensor& x, const Tensor& residual);

// The activation of that name; throws for others.
Activation activation_named(const std::string& name);

}  // namespace rtp_llm::glue
