// SPDX-License-Identifier: Apache-2.0
// Checks the tensor of a gated activation and describes it to kernels, for every device.
#pragma once

#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// `out` is left to the caller: contiguous, like x with half of its columns.
GatedActivationArgs gated_activation_args(const Tensor& x, Activation activation, const char* what);

}  // namespace rtp_llm::glue
