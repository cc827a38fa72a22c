// SPDX-License-Identifier: Apache-2.0
// Routing of tokens to experts, and products of rows that are sorted by expert.
#pragma once

#include "rtp_llm/kernels/common/moe/moe.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

void select_topk(Queue& queue, const SelectTopkArgs& args);
void group_topk(Queue& queue, const GroupTopkArgs& args);
void fake_balance_expert(Queue& queue, const FakeBalanceExpertArgs& args);
void sort_by_expert(Queue& queue, const SortByExpertArgs& args);
void grouped_linear(Queue& queue, const GroupedLinearArgs& args);
// A place outside y gives a row of NaN.
void sum_experts(Queue& queue, const SumExpertsArgs& args);

constexpr int kMaxExperts = 1024;
// What a group of grouped_linear computes: so many sorted rows and columns.
constexpr int64_t kGroupedRows = 8;
constexpr int64_t kGroupedColumns = 64;

}  // namespace rtp_llm::xpu
