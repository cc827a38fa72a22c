// SPDX-License-Identifier: Apache-2.0
// Experts in MXFP4 with bfloat16 activations, on tensor cores: for NVIDIA GPUs from Ampere on.
#pragma once

#include "rtp_llm/kernels/common/moe/mxfp4_experts.h"

namespace rtp_llm::cuda {

// out = gate sigmoid(alpha gate) (up + 1), the gate limited to `limit` and up to +-limit.
void mxfp4_experts_gate_up(const Mxfp4ExpertsArgs& args, void* stream);

// out = x weight^T + bias.
void mxfp4_experts_down(const Mxfp4ExpertsArgs& args, void* stream);

}  // namespace rtp_llm::cuda
