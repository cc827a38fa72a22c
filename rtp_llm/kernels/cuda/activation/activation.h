// SPDX-License-Identifier: Apache-2.0
// Gated activations.
#pragma once

#include "rtp_llm/kernels/common/activation/activation.h"

namespace rtp_llm::cuda {

void gated_activation(const GatedActivationArgs& args, void* stream);

}  // namespace rtp_llm::cuda
