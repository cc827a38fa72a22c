// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of a linear layer of few rows and describes them to kernels. How many rows and
// which sizes of weights a kernel takes is left to the device.
#pragma once

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// `out`, its stride, the norm and the end are left to the caller.
SkinnyLinearArgs skinny_linear_args(const Tensor& x, const Tensor& weight,
                                    const OptionalTensor& bias);

// A new result, as `end` makes it of the rows of x.
Tensor skinny_linear_result(SkinnyLinearArgs& args, const Tensor& x, LinearEnd end);

}  // namespace rtp_llm::glue
