// SPDX-License-Identifier: Apache-2.0
// The gates of attention and of shared experts.
#pragma once

#include "rtp_llm/kernels/common/activation/sigmoid_gate.h"

namespace rtp_llm::cuda {

void sigmoid_gate(const SigmoidGateArgs& args, void* stream);
void add_sigmoid_gated(const AddSigmoidGatedArgs& args, void* stream);

}  // namespace rtp_llm::cuda
