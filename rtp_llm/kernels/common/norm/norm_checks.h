// SPDX-License-Identifier: Apache-2.0
// What else than the norms checks tensors as they do.
#pragma once

#include "rtp_llm/kernels/common/norm/calls.h"
#include "rtp_llm/kernels/common/norm/norm.h"

namespace rtp_llm::glue {

// `out` is left to the caller: contiguous, like x.
RmsNormArgs rms_norm_args(const Tensor& x, const Tensor& weight, double eps, double offset);

}  // namespace rtp_llm::glue
