// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/moe_checks.h"
#include "rtp_llm/kernels/cpu/moe/moe_experts.h"
#include "rtp_llm/kernels/cpu/moe/moe_routing.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

// A score costs about as much as 40 bytes of traffic: its exponential.
constexpr int64_t kScoreBytes = 40;

void select(const TopkArgs& args) {
  const int64_t grain = grain_rows(args.experts * (kScoreBytes + args.k * int64_t{4}));
  glue::run(&select_experts, args, args.tokens, grain);
}

void select_topk(const glue::SelectTopkCall& call) { select(glue::select_topk_args(call)); }

void group_topk(const glue::GroupTopkCall& call) { select(glue::group_topk_args(call)); }

void fake_balance_expert(const glue::FakeBalanceExpertCall& call) {
  fake_balance(glue::fake_balance_args(call));
}

std::tuple<Tensor, Tensor, Tensor> sort_entries(const glue::SortByExpertCall& call) {
  ExpertSortArgs args = glue::expert_sort_args(call);
  std::tuple<Tensor, Tensor, Tensor> result{
      glue::empty(call.ids, {args.count}, DType::kInt32), glue::empty_like(call.ids),
      glue::empty(call.ids, {call.num_experts + 1}, DType::kInt32)};
  args.rows = std::get<0>(result).data<int32_t>();
  args.places = std::get<1>(result).data<int32_t>();
  args.offsets = std::get<2>(result).data<int32_t>();
  sort_by_expert(args);
  return result;
}

Tensor grouped_product(const glue::GroupedLinearCall& call) {
  GroupedLinearArgs args = glue::grouped_linear_args(call);
  int32_t first = 0;
  for (int e = 0; e <= args.experts; ++e) {
    if (args.offsets[e] < first || args.offsets[e] > args.rows) {
      glue::fail_index("grouped_linear: offsets[", e, "] is ", args.offsets[e], "; expected from ",
                       first, " to the ", args.rows, " rows of x");
    }
    first = args.offsets[e];
  }
  Tensor out = glue::empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  grouped_linear(args, glue::parallel_for());
  return out;
}

Tensor weighted_sum(const glue::SumExpertsCall& call) {
  ExpertSumArgs args = glue::expert_sum_args(call);
  for (int64_t i = 0; i < args.tokens * args.k; ++i) {
    if (args.places[i] >= args.rows) {
      glue::fail_index("sum_experts: places[", i, "] is ", args.places[i],
                       "; expected less than the ", args.rows, " rows of y");
    }
  }
  Tensor out = glue::empty(call.y, {args.tokens, args.size}, args.dtype);
  args.out = out.data();
  const int64_t row_bytes = args.size * (args.k + 1) * element_size(args.dtype);
  glue::run(RTP_LLM_PICK_ISA(sum_experts), args, args.tokens, grain_rows(row_bytes));
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&select_topk>(library);
  glue::implement<&group_topk>(library);
  glue::implement<&fake_balance_expert>(library);
  glue::implement<&sort_entries>(library);
  glue::implement<&grouped_product>(library);
  glue::implement<&weighted_sum>(library);
}

}  // namespace rtp_llm::cpu
