// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of a linear layer of few rows and describes them to kernels. How many rows and
// which sizes of weights a kernel takes is left to the device.
#pragma once

#include <string>

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// The weight, `out`, its stride, the norm and the end are left to the caller.
SkinnyLinearArgs linear_args(const Tensor& x, int64_t outputs, const OptionalTensor& bias);

// The same with the weight.
SkinnyLinearArgs skinny_linear_args(const Tensor& x, const Tensor& weight,
                                    const OptionalTensor& bias);

void set_linear_norm(SkinnyLinearArgs& args, const Tensor& x, const Tensor& norm_weight, double eps,
                     double offset);
void set_linear_residual(SkinnyLinearArgs& args, const Tensor& x, const Tensor& residual);
Activation linear_activation(const std::string& name);

// A new result, as `end` makes it of the rows of x.
Tensor skinny_linear_result(SkinnyLinearArgs& args, const Tensor& x, LinearEnd end);

}  // namespace rtp_llm::glue
