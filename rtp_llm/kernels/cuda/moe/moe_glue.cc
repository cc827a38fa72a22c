#include <tuple>

#include "rtp_llm/kernels/common/moe/moe_checks.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void select_topk(const Tensor& logits, const Tensor& ids, const Tensor& weights, bool renormalize) {
  const TopkArgs args = glue::select_topk_args(logits, ids, weights, renormalize);
  const OnDevice device(logits);
  select_experts(args, device.stream());
}

void group_topk(const Tensor& logits, const OptionalTensor& bias, const Tensor& ids,
                const Tensor& weights, std::string scoring, int64_t num_groups, int64_t top_groups,
                int64_t group_best, bool renormalize, double scaling) {
  const TopkArgs args = glue::group_topk_args(logits, bias, ids, weights, scoring, num_groups,
                                              top_groups, group_best, renormalize, scaling);
  const OnDevice device(logits);
  select_experts(args, device.stream());
}

void fake_balance_expert(const Tensor& ids, const Tensor& scales, int64_t expert_num,
                         int64_t dp_rank, int64_t dp_size, int64_t ep_size) {
  const FakeBalanceArgs args =
      glue::fake_balance_args(ids, scales, expert_num, dp_rank, dp_size, ep_size);
  const OnDevice device(ids);
  fake_balance(args, device.stream());
}

std::tuple<Tensor, Tensor, Tensor> sort_entries(const Tensor& ids, int64_t num_experts) {
  ExpertSortArgs args = glue::expert_sort_args(ids, num_experts);
  std::tuple<Tensor, Tensor, Tensor> result{glue::empty(ids, {args.count}, DType::kInt32),
                                            glue::empty_like(ids),
                                            glue::empty(ids, {num_experts + 1}, DType::kInt32)};
  args.rows = std::get<0>(result).data<int32_t>();
  args.places = std::get<1>(result).data<int32_t>();
  args.offsets = std::get<2>(result).data<int32_t>();
  const OnDevice device(ids);
  sort_by_expert(args, device.stream());
  return result;
}

Tensor grouped_product(const Tensor& x, const Tensor& weight, const Tensor& offsets) {
  GroupedLinearArgs args = glue::grouped_linear_args(x, weight, offsets);
  Tensor out = glue::empty(x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  const OnDevice device(x);
  grouped_linear(args, device.stream());
  return out;
}

Tensor weighted_sum(const Tensor& y, const Tensor& places, const Tensor& weights) {
  ExpertSumArgs args = glue::expert_sum_args(y, places, weights);
  Tensor out = glue::empty(y, {args.tokens, args.size}, args.dtype);
  args.out = out.data();
  const OnDevice device(y);
  sum_experts(args, device.stream());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<select_topk>(library, "select_topk");
  glue::implement<group_topk>(library, "group_topk");
  glue::implement<fake_balance_expert>(library, "fake_balance_expert");
  glue::implement<sort_entries>(library, "sort_by_expert");
  glue::implement<grouped_product>(library, "grouped_linear");
  glue::implement<weighted_sum>(library, "sum_experts");
}

}  // namespace rtp_llm::cuda
