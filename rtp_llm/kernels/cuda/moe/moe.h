// SPDX-License-Identifier: Apache-2.0
// Routing of tokens to experts, products of rows sorted by expert, and their sums.
#pragma once

#include "rtp_llm/kernels/common/moe/moe.h"

namespace rtp_llm::cuda {

void select_experts(const TopkArgs& args, void* stream);
void fake_balance(const FakeBalanceArgs& args, void* stream);
// Integers of scratch that sort_by_expert takes.
int64_t sort_scratch(const ExpertSortArgs& args);
void sort_by_expert(const ExpertSortArgs& args, int32_t* scratch, void* stream);
void grouped_linear(const GroupedLinearArgs& args, void* stream);
void sum_experts(const ExpertSumArgs& args, void* stream);

}  // namespace rtp_llm::cuda
