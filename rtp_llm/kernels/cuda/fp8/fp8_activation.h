// SPDX-License-Identifier: Apache-2.0
// Activations as block-scaled FP8.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_activation.h"

namespace rtp_llm::cuda {

void fp8_activation(const Fp8ActivationArgs& args, void* stream);

}  // namespace rtp_llm::cuda
