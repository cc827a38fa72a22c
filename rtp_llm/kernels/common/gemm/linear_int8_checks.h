// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of int8_linear and describes them to kernels, for every device.
#pragma once

#include "rtp_llm/kernels/common/gemm/linear_int8.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// All but `out`.
Int8LinearArgs int8_linear_args(const Tensor& x, const Tensor& weight, const Tensor& scale,
                                const OptionalTensor& bias);

}  // namespace rtp_llm::glue
