#include "rtp_llm/kernels/common/moe/moe_checks.h"

#include <algorithm>

namespace rtp_llm::glue {
namespace {

// What shared memory and registers of GPU kernels are laid out for.
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostGroups = 32;

bool wide(const Tensor& ids, const char* what) {
  RTP_LLM_CHECK(ids.dtype() == DType::kInt32 || ids.dtype() == DType::kInt64, what, " is ",
                ids.describe(), "; expected int32 or int64");
  return ids.dtype() == DType::kInt64;
}

// What both selections have in common; `name` is the operator.
TopkArgs topk_args(const std::string& name, const Tensor& logits, const Tensor& ids,
                   const Tensor& weights) {
  const std::string logits_name = name + ": logits";
  const std::string ids_name = name + ": ids";
  const std::string weights_name = name + ": weights";
  check_dtype(logits, DType::kFloat32, logits_name.c_str());
  check_dim(logits, 2, logits_name.c_str());
  check_contiguous_rows(logits, logits_name.c_str());
  check_dim(ids, 2, ids_name.c_str());
  check_contiguous(ids, ids_name.c_str());
  check_dtype(weights, DType::kFloat32, weights_name.c_str());
  check_same_sizes(weights, ids, weights_name.c_str());
  check_contiguous(weights, weights_name.c_str());
  const int64_t tokens = logits.size(0);
  const int64_t experts = logits.size(1);
  const int64_t k = ids.size(1);
  RTP_LLM_CHECK(ids.size(0) == tokens && k >= 1 && k <= experts, ids_name, " is ", ids.describe(),
                " and logits ", logits.describe(),
                "; expected as many rows, and from 1 to as many columns");
  RTP_LLM_CHECK(experts <= kMostExperts, logits_name, " is ", logits.describe(),
                "; expected at most ", kMostExperts, " experts");
  TopkArgs args = {};
  args.logits = logits.data<float>();
  args.ids = ids.data();
  args.weights = weights.data<float>();
  args.tokens = tokens;
  args.logits_stride = logits.stride(0);
  args.experts = static_cast<int>(experts);
  args.k = static_cast<int>(k);
  args.groups = args.top_groups = args.group_best = 1;
  args.scaling = 1.0F;
  args.wide_ids = wide(ids, ids_name.c_str());
  return args;
}

}  // namespace

TopkArgs select_topk_args(const Tensor& logits, const Tensor& ids, const Tensor& weights,
                          bool renormalize) {
  TopkArgs args = topk_args("select_topk", logits, ids, weights);
  args.renormalize = renormalize;
  return args;
}

TopkArgs group_topk_args(const Tensor& logits, const OptionalTensor& bias, const Tensor& ids,
                         const Tensor& weights, const std::string& scoring, int64_t groups,
                         int64_t top_groups, int64_t group_best, bool renormalize, double scaling) {
  TopkArgs args = topk_args("group_topk", logits, ids, weights);
  RTP_LLM_CHECK(scoring == "softmax" || scoring == "sigmoid", "group_topk: scoring is '", scoring,
                "'; expected softmax or sigmoid");
  RTP_LLM_CHECK(groups >= 1 && groups <= kMostGroups && args.experts % groups == 0,
                "group_topk: num_groups is ", groups, "; expected a divisor of the ", args.experts,
                " experts, at most ", kMostGroups);
  const int64_t size = args.experts / groups;
  RTP_LLM_CHECK(top_groups >= 1 && top_groups <= groups && top_groups * size >= args.k,
                "group_topk: top_groups is ", top_groups, "; expected groups with at least ",
                args.k, " experts, out of ", groups, " of ", size);
  RTP_LLM_CHECK(group_best >= 1 && group_best <= size, "group_topk: group_best is ", group_best,
                "; expected from 1 to the ", size, " experts of a group");
  if (bias.has_value()) {
    check_dtype(*bias, DType::kFloat32, "group_topk: bias");
    check_sizes(*bias, {args.experts}, "group_topk: bias");
    check_contiguous(*bias, "group_topk: bias");
    args.bias = bias->data<float>();
  }
  args.groups = static_cast<int>(groups);
  args.top_groups = static_cast<int>(top_groups);
  args.group_best = static_cast<int>(group_best);
  args.sigmoid = scoring == "sigmoid";
  args.renormalize = renormalize;
  args.scaling = static_cast<float>(scaling);
  return args;
}

FakeBalanceArgs fake_balance_args(const Tensor& ids, const Tensor& scales, int64_t expert_num,
                                  int64_t dp_rank, int64_t dp_size, int64_t ep_size) {
  check_contiguous(ids, "fake_balance_expert: ids");
  check_dtype(scales, DType::kFloat32, "fake_balance_expert: scales");
  check_same_sizes(scales, ids, "fake_balance_expert: scales");
  check_contiguous(scales, "fake_balance_expert: scales");
  RTP_LLM_CHECK(ep_size >= 1 && expert_num >= 1 && expert_num % ep_size == 0,
                "fake_balance_expert: expert_num is ", expert_num, " and ep_size ", ep_size,
                "; expected a multiple of it");
  RTP_LLM_CHECK(dp_size >= 1 && dp_rank >= 0 && dp_rank < dp_size,
                "fake_balance_expert: dp_rank is ", dp_rank, " and dp_size ", dp_size,
                "; expected 0 <= dp_rank < dp_size");
  FakeBalanceArgs args = {};
  args.ids = ids.data();
  args.scales = scales.data<float>();
  args.count = ids.numel();
  args.local = expert_num / ep_size;
  args.ranks = ep_size;
  args.first_rank = ep_size * dp_rank / dp_size;
  const double share = static_cast<double>(args.local) / static_cast<double>(dp_size);
  args.first =
      static_cast<int64_t>(static_cast<double>(dp_rank) * std::max(share, 1.0)) % args.local;
  args.wide_ids = wide(ids, "fake_balance_expert: ids");
  return args;
}

ExpertSortArgs expert_sort_args(const Tensor& ids, int64_t experts) {
  check_dtype(ids, DType::kInt32, "sort_by_expert: ids");
  check_dim(ids, 2, "sort_by_expert: ids");
  check_contiguous(ids, "sort_by_expert: ids");
  RTP_LLM_CHECK(experts >= 1 && experts <= kMostExperts, "sort_by_expert: num_experts is ", experts,
                "; expected from 1 to ", kMostExperts);
  ExpertSortArgs args = {};
  args.ids = ids.data<int32_t>();
  args.count = ids.numel();
  args.experts = static_cast<int>(experts);
  return args;
}

GroupedLinearArgs grouped_linear_args(const Tensor& x, const Tensor& weight,
                                      const Tensor& offsets) {
  check_float_dtype(x, "grouped_linear: x");
  check_dim(x, 2, "grouped_linear: x");
  check_contiguous(x, "grouped_linear: x");
  check_dtype(weight, x.dtype(), "grouped_linear: weight");
  check_dim(weight, 3, "grouped_linear: weight");
  check_contiguous(weight, "grouped_linear: weight");
  RTP_LLM_CHECK(weight.size(2) == x.size(1), "grouped_linear: weight is ", weight.describe(),
                " and x ", x.describe(), "; expected equal numbers of columns");
  check_index(offsets, "grouped_linear: offsets");
  check_sizes(offsets, {weight.size(0) + 1}, "grouped_linear: offsets");
  GroupedLinearArgs args = {};
  args.x = x.data();
  args.weight = weight.data();
  args.offsets = offsets.data<int32_t>();
  args.rows = x.size(0);
  args.n = weight.size(1);
  args.k = x.size(1);
  args.experts = static_cast<int>(weight.size(0));
  args.dtype = x.dtype();
  return args;
}

ExpertSumArgs expert_sum_args(const Tensor& y, const Tensor& places, const Tensor& weights) {
  check_float_dtype(y, "sum_experts: y");
  check_dim(y, 2, "sum_experts: y");
  check_contiguous(y, "sum_experts: y");
  check_dtype(places, DType::kInt32, "sum_experts: places");
  check_dim(places, 2, "sum_experts: places");
  check_contiguous(places, "sum_experts: places");
  check_dtype(weights, DType::kFloat32, "sum_experts: weights");
  check_same_sizes(weights, places, "sum_experts: weights");
  check_contiguous(weights, "sum_experts: weights");
  ExpertSumArgs args = {};
  args.y = y.data();
  args.places = places.data<int32_t>();
  args.weights = weights.data<float>();
  args.rows = y.size(0);
  args.tokens = places.size(0);
  args.size = y.size(1);
  args.k = static_cast<int>(places.size(1));
  args.dtype = y.dtype();
  return args;
}

}  // namespace rtp_llm::glue
