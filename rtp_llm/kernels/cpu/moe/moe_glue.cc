#include <tuple>

#include "rtp_llm/kernels/common/moe/moe_checks.h"
#include "rtp_llm/kernels/cpu/moe/moe_experts.h"
#include "rtp_llm/kernels/cpu/moe/moe_routing.h"

namespace rtp_llm::cpu {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

// A score costs about as much as 40 bytes of traffic: its exponential.
constexpr int64_t kScoreBytes = 40;

void select(const TopkArgs& args) {
  const int64_t grain = grain_rows(args.experts * (kScoreBytes + args.k * int64_t{4}));
  glue::run(&select_experts, args, args.tokens, grain);
}

void select_topk(const Tensor& logits, const Tensor& ids, const Tensor& weights, bool renormalize) {
  select(glue::select_topk_args(logits, ids, weights, renormalize));
}

void group_topk(const Tensor& logits, const OptionalTensor& bias, const Tensor& ids,
                const Tensor& weights, std::string scoring, int64_t num_groups, int64_t top_groups,
                int64_t group_best, bool renormalize, double scaling) {
  select(glue::group_topk_args(logits, bias, ids, weights, scoring, num_groups, top_groups,
                               group_best, renormalize, scaling));
}

void fake_balance_expert(const Tensor& ids, const Tensor& scales, int64_t expert_num,
                         int64_t dp_rank, int64_t dp_size, int64_t ep_size) {
  fake_balance(glue::fake_balance_args(ids, scales, expert_num, dp_rank, dp_size, ep_size));
}

std::tuple<Tensor, Tensor, Tensor> sort_entries(const Tensor& ids, int64_t num_experts) {
  ExpertSortArgs args = glue::expert_sort_args(ids, num_experts);
  std::tuple<Tensor, Tensor, Tensor> result{glue::empty(ids, {args.count}, DType::kInt32),
                                            glue::empty_like(ids),
                                            glue::empty(ids, {num_experts + 1}, DType::kInt32)};
  args.rows = std::get<0>(result).data<int32_t>();
  args.places = std::get<1>(result).data<int32_t>();
  args.offsets = std::get<2>(result).data<int32_t>();
  sort_by_expert(args);
  return result;
}

Tensor grouped_product(const Tensor& x, const Tensor& weight, const Tensor& offsets) {
  GroupedLinearArgs args = glue::grouped_linear_args(x, weight, offsets);
  int32_t first = 0;
  for (int e = 0; e <= args.experts; ++e) {
    if (args.offsets[e] < first || args.offsets[e] > args.rows) {
      glue::fail_index("grouped_linear: offsets[", e, "] is ", args.offsets[e], "; expected from ",
                       first, " to the ", args.rows, " rows of x");
    }
    first = args.offsets[e];
  }
  Tensor out = glue::empty(x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  grouped_linear(args, glue::parallel_for());
  return out;
}

Tensor weighted_sum(const Tensor& y, const Tensor& places, const Tensor& weights) {
  ExpertSumArgs args = glue::expert_sum_args(y, places, weights);
  for (int64_t i = 0; i < args.tokens * args.k; ++i) {
    if (args.places[i] >= args.rows) {
      glue::fail_index("sum_experts: places[", i, "] is ", args.places[i],
                       "; expected less than the ", args.rows, " rows of y");
    }
  }
  Tensor out = glue::empty(y, {args.tokens, args.size}, args.dtype);
  args.out = out.data();
  const int64_t row_bytes = args.size * (args.k + 1) * element_size(args.dtype);
  glue::run(RTP_LLM_PICK_ISA(sum_experts), args, args.tokens, grain_rows(row_bytes));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<select_topk>(library, "select_topk");
  glue::implement<group_topk>(library, "group_topk");
  glue::implement<fake_balance_expert>(library, "fake_balance_expert");
  glue::implement<sort_entries>(library, "sort_by_expert");
  glue::implement<grouped_product>(library, "grouped_linear");
  glue::implement<weighted_sum>(library, "sum_experts");
}

}  // namespace rtp_llm::cpu
