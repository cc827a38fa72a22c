// SPDX-License-Identifier: Apache-2.0
// Linear attention: the short convolution, and over states with rings the gated delta rule and
// Mamba-2's scan.
#pragma once

#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"

namespace rtp_llm::cuda {

void causal_conv1d(const CausalConv1dArgs& args, void* stream);

// Chunks of more than args.sequences.max_seqlen_q tokens are left to another kernel: nothing of
// them is read or written. Throws std::runtime_error when the blocks of the state do not begin at
// multiples of 16 bytes or a key head is wider than 512.
void gated_delta_rule(const GatedDeltaRuleArgs& args, void* stream);

void mamba2_scan(const Mamba2ScanArgs& args, void* stream);

}  // namespace rtp_llm::cuda
