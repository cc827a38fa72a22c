// SPDX-License-Identifier: Apache-2.0
// Linear attention: the gated delta rule and the short convolution in front of it.
#pragma once

#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// A sequence whose blocks or length are out of range writes no state and gives rows of NaN. One
// whose cu_seqlens_q are out of range has no rows, so nothing is written for it.
void causal_conv1d(Queue& queue, const CausalConv1dArgs& args);
void gated_delta_rule(Queue& queue, const GatedDeltaRuleArgs& args);

// The widest key head: a tile of states lies in memory that a group shares.
constexpr int kMaxStateKeys = 256;
// Value rows of a group, an item each; `folded` counts tiles of 8.
constexpr int kStateRows = 32;

}  // namespace rtp_llm::xpu
