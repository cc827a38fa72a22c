// The output gate of attention.
#pragma once

#include "rtp_llm/kernels/common/activation/sigmoid_gate.h"

namespace rtp_llm::cuda {

void sigmoid_gate(const SigmoidGateArgs& args, void* stream);

}  // namespace rtp_llm::cuda
