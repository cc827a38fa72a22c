// SPDX-License-Identifier: Apache-2.0
// linear by torch's own matrix products (cuBLAS, hipBLASLt, oneDNN), for devices on which nothing
// of ours is faster.
#pragma once

#include "rtp_llm/kernels/common/gemm/calls.h"

namespace rtp_llm::glue {

Tensor torch_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

// The operator.
Tensor call_torch_linear(const LinearCall& call);

// The same without a bias and in float32, as it was summed.
Tensor torch_float_linear(const Tensor& x, const Tensor& weight);

}  // namespace rtp_llm::glue
