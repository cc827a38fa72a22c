// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of routing and of experts and describes them to kernels, for every device.
// What index tensors hold is not looked at.
#pragma once

#include <string>

#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/moe.h"

namespace rtp_llm::glue {

TopkArgs select_topk_args(const SelectTopkCall& call);

TopkArgs group_topk_args(const GroupTopkCall& call);

FakeBalanceArgs fake_balance_args(const FakeBalanceExpertCall& call);

// The results are left to the caller.
ExpertSortArgs expert_sort_args(const SortByExpertCall& call);
GroupedLinearArgs grouped_linear_args(const GroupedLinearCall& call);
ExpertSumArgs expert_sum_args(const SumExpertsCall& call);

// `out` is the residual.
ExpertSumArgs expert_sum_args(const AddExpertsCall& call);

}  // namespace rtp_llm::glue
