// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/moe_checks.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

void select_topk(const glue::SelectTopkCall& call) {
  const TopkArgs args = glue::select_topk_args(call);
  const OnDevice device(call.logits);
  select_experts(args, device.stream());
}

void group_topk(const glue::GroupTopkCall& call) {
  const TopkArgs args = glue::group_topk_args(call);
  const OnDevice device(call.logits);
  select_experts(args, device.stream());
}

void fake_balance_expert(const glue::FakeBalanceExpertCall& call) {
  const FakeBalanceArgs args = glue::fake_balance_args(call);
  const OnDevice device(call.ids);
  fake_balance(args, device.stream());
}

std::tuple<Tensor, Tensor, Tensor> sort_entries(const glue::SortByExpertCall& call) {
  ExpertSortArgs args = glue::expert_sort_args(call);
  std::tuple<Tensor, Tensor, Tensor> result{
      glue::empty(call.ids, {args.count}, DType::kInt32), glue::empty_like(call.ids),
      glue::empty(call.ids, {call.num_experts + 1}, DType::kInt32)};
  args.rows = std::get<0>(result).data<int32_t>();
  args.places = std::get<1>(result).data<int32_t>();
  args.offsets = std::get<2>(result).data<int32_t>();
  const Tensor scratch = glue::empty(call.ids, {sort_scratch(args)}, DType::kInt32);
  const OnDevice device(call.ids);
  sort_by_expert(args, scratch.data<int32_t>(), device.stream());
  return result;
}

Tensor grouped_product(const glue::GroupedLinearCall& call) {
  GroupedLinearArgs args = glue::grouped_linear_args(call);
  Tensor out = glue::empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  const OnDevice device(call.x);
  grouped_linear(args, device.stream());
  return out;
}

Tensor weighted_sum(const glue::SumExpertsCall& call) {
  ExpertSumArgs args = glue::expert_sum_args(call);
  Tensor out = glue::empty(call.y, {args.tokens, args.size}, args.dtype);
  args.out = out.data();
  const OnDevice device(call.y);
  sum_experts(args, device.stream());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&select_topk>(library);
  glue::implement<&group_topk>(library);
  glue::implement<&fake_balance_expert>(library);
  glue::implement<&sort_entries>(library);
  glue::implement<&grouped_product>(library);
  glue::implement<&weighted_sum>(library);
}

}  // namespace rtp_llm::cuda
