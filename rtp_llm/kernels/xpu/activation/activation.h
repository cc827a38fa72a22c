// SPDX-License-Identifier: Apache-2.0
// Gated activations.
#pragma once

#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

void gated_activation(Queue& queue, const GatedActivationArgs& args);

}  // namespace rtp_llm::xpu
