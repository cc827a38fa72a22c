// SPDX-License-Identifier: Apache-2.0
// Experts in MXFP4 with bfloat16 activations, on tensor cores: for NVIDIA GPUs from Ampere on.
#pragma once

#include "rtp_llm/kernels/common/moe/mxfp4_experts.h"

namespace rtp_llm::cuda {

// out = gate sigmoid(alpha gate) (up + 1), the gate limited to `limit` and up to +-limit. `memory`:
// as many bytes as the function says.
int64_t mxfp4_experts_gate_up_scratch(const Mxfp4ExpertsArgs& args);
void mxfp4_experts_gate_up(const Mxfp4ExpertsArgs& args, void* memory, void* stream);

// out = x weight^T + bias.
int64_t mxfp4_experts_down_scratch(const Mxfp4ExpertsArgs& args);
void mxfp4_experts_down(const Mxfp4ExpertsArgs& args, void* memory, void* stream);

// The same for many rows of each expert, on Hopper: whether it is there and faster, and how many
// bytes it takes; 0 where it is not.
bool takes_many_mxfp4_rows(const Mxfp4ExpertsArgs& args);
int64_t many_mxfp4_rows_scratch(const Mxfp4ExpertsArgs& args);
void many_mxfp4_rows(const Mxfp4ExpertsArgs& args, bool gated, void* memory, void* stream);

}  // namespace rtp_llm::cuda
