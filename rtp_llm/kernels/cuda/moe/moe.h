// SPDX-License-Identifier: Apache-2.0
// Routing of tokens to experts, products of rows sorted by expert, and their sums.
#pragma once

#include "rtp_llm/kernels/common/moe/moe.h"

namespace rtp_llm::cuda {

void grouped_linear(const GroupedLinearArgs& args, void* stream);
void sum_experts(const SumExpertsArgs& args, void* stream);

}  // namespace rtp_llm::cuda
