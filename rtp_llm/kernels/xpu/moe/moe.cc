// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/moe/moe.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

void select_experts(Queue& queue, const TopkArgs& args) {
  submit(queue, {"moe_kernel", "select_experts", args.tokens, items_for(args.experts)}, args);
}

}  // namespace

RTP_LLM_OPERATOR(select_topk)
void select_topk(Queue& queue, const SelectTopkArgs& args) { select_experts(queue, args); }

RTP_LLM_OPERATOR(group_topk)
void group_topk(Queue& queue, const GroupTopkArgs& args) { select_experts(queue, args); }

RTP_LLM_OPERATOR(fake_balance_expert)
void fake_balance_expert(Queue& queue, const FakeBalanceExpertArgs& args) {
  submit(queue, {"moe_kernel", "fake_balance_expert", ceil_div(args.count, kMaxItems), kMaxItems},
         args);
}

// One group counts and places everything, so that nothing is read back.
RTP_LLM_OPERATOR(sort_by_expert)
void sort_by_expert(Queue& queue, const SortByExpertArgs& args) {
  submit(queue, {"moe_kernel", "sort_by_expert", 1, items_for(args.experts + 1)}, args);
}

RTP_LLM_OPERATOR(grouped_linear)
void grouped_linear(Queue& queue, const GroupedLinearArgs& args) {
  const int64_t groups = ceil_div(args.rows, kGroupedRows) * ceil_div(args.n, kGroupedColumns);
  submit(queue, {"grouped_linear_kernel", entry("grouped_linear", args.dtype), groups, kMaxItems},
         args);
}

RTP_LLM_OPERATOR(sum_experts)
void sum_experts(Queue& queue, const SumExpertsArgs& args) {
  submit(queue,
         {"grouped_linear_kernel", entry("sum_experts", args.dtype), args.tokens,
          items_for(args.size)},
         args);
}

}  // namespace rtp_llm::xpu
