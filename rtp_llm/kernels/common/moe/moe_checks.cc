// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/moe/moe_checks.h"

#include <algorithm>

namespace rtp_llm::glue {
namespace {

// What shared memory and registers of GPU kernels are laid out for.
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxGroups = 32;

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
  RTP_LLM_CHECK(experts <= kMaxExperts, logits_name, " is ", logits.describe(),
                "; expected at most ", kMaxExperts, " experts");
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

// What both sums have in common; `name` is the operator.
SumExpertsArgs sum_args(const std::string& name, const Tensor& y, const Tensor& places,
                        const Tensor& weights) {
  const std::string y_name = name + ": y";
  const std::string places_name = name + ": places";
  const std::string weights_name = name + ": weights";
  check_float_dtype(y, y_name.c_str());
  check_dim(y, 2, y_name.c_str());
  check_contiguous(y, y_name.c_str());
  check_dtype(places, DType::kInt32, places_name.c_str());
  check_dim(places, 2, places_name.c_str());
  check_contiguous(places, places_name.c_str());
  check_dtype(weights, DType::kFloat32, weights_name.c_str());
  check_same_sizes(weights, places, weights_name.c_str());
  check_contiguous(weights, weights_name.c_str());
  SumExpertsArgs args = {};
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

}  // namespace

Prepared<SelectTopkArgs, void> prepare(const SelectTopkCall& call) {
  TopkArgs args = topk_args("select_topk", call.logits, call.ids, call.weights);
  args.renormalize = call.renormalize;
  return {args};
}

Prepared<GroupTopkArgs, void> prepare(const GroupTopkCall& call) {
  TopkArgs args = topk_args("group_topk", call.logits, call.ids, call.weights);
  RTP_LLM_CHECK(call.scoring == "softmax" || call.scoring == "sigmoid", "group_topk: scoring is '",
                call.scoring, "'; expected softmax or sigmoid");
  RTP_LLM_CHECK(
      call.num_groups >= 1 && call.num_groups <= kMaxGroups && args.experts % call.num_groups == 0,
      "group_topk: num_groups is ", call.num_groups, "; expected a divisor of the ", args.experts,
      " experts, at most ", kMaxGroups);
  const int64_t size = args.experts / call.num_groups;
  RTP_LLM_CHECK(call.top_groups >= 1 && call.top_groups <= call.num_groups &&
                    call.top_groups * size >= args.k,
                "group_topk: top_groups is ", call.top_groups, "; expected groups with at least ",
                args.k, " experts, out of ", call.num_groups, " of ", size);
  RTP_LLM_CHECK(call.group_best >= 1 && call.group_best <= size, "group_topk: group_best is ",
                call.group_best, "; expected from 1 to the ", size, " experts of a group");
  if (call.bias.has_value()) {
    check_dtype(*call.bias, DType::kFloat32, "group_topk: bias");
    check_sizes(*call.bias, {args.experts}, "group_topk: bias");
    check_contiguous(*call.bias, "group_topk: bias");
    args.bias = call.bias->data<float>();
  }
  args.groups = static_cast<int>(call.num_groups);
  args.top_groups = static_cast<int>(call.top_groups);
  args.group_best = static_cast<int>(call.group_best);
  args.sigmoid = call.scoring == "sigmoid";
  args.renormalize = call.renormalize;
  args.scaling = static_cast<float>(call.scaling);
  return {args};
}

Prepared<FakeBalanceExpertArgs, void> prepare(const FakeBalanceExpertCall& call) {
  check_contiguous(call.ids, "fake_balance_expert: ids");
  check_dtype(call.scales, DType::kFloat32, "fake_balance_expert: scales");
  check_same_sizes(call.scales, call.ids, "fake_balance_expert: scales");
  check_contiguous(call.scales, "fake_balance_expert: scales");
  RTP_LLM_CHECK(call.ep_size >= 1 && call.expert_num >= 1 && call.expert_num % call.ep_size == 0,
                "fake_balance_expert: expert_num is ", call.expert_num, " and ep_size ",
                call.ep_size, "; expected a multiple of it");
  RTP_LLM_CHECK(call.dp_size >= 1 && call.dp_rank >= 0 && call.dp_rank < call.dp_size,
                "fake_balance_expert: dp_rank is ", call.dp_rank, " and dp_size ", call.dp_size,
                "; expected 0 <= dp_rank < dp_size");
  FakeBalanceExpertArgs args = {};
  args.ids = call.ids.data();
  args.scales = call.scales.data<float>();
  args.count = call.ids.numel();
  args.local = call.expert_num / call.ep_size;
  args.ranks = call.ep_size;
  args.first_rank = call.ep_size * call.dp_rank / call.dp_size;
  const double share = static_cast<double>(args.local) / static_cast<double>(call.dp_size);
  args.first =
      static_cast<int64_t>(static_cast<double>(call.dp_rank) * std::max(share, 1.0)) % args.local;
  args.wide_ids = wide(call.ids, "fake_balance_expert: ids");
  return {args};
}

Prepared<SortByExpertArgs, std::tuple<Tensor, Tensor, Tensor>> prepare(
    const SortByExpertCall& call) {
  check_dtype(call.ids, DType::kInt32, "sort_by_expert: ids");
  check_dim(call.ids, 2, "sort_by_expert: ids");
  check_contiguous(call.ids, "sort_by_expert: ids");
  RTP_LLM_CHECK(call.num_experts >= 1 && call.num_experts <= kMaxExperts,
                "sort_by_expert: num_experts is ", call.num_experts, "; expected from 1 to ",
                kMaxExperts);
  SortByExpertArgs args = {};
  args.ids = call.ids.data<int32_t>();
  args.count = call.ids.numel();
  args.experts = static_cast<int>(call.num_experts);
  std::tuple<Tensor, Tensor, Tensor> result{empty(call.ids, {args.count}, DType::kInt32),
                                            empty_like(call.ids),
                                            empty(call.ids, {call.num_experts + 1}, DType::kInt32)};
  args.rows = std::get<0>(result).data<int32_t>();
  args.places = std::get<1>(result).data<int32_t>();
  args.offsets = std::get<2>(result).data<int32_t>();
  return {args, std::move(result)};
}

Prepared<GroupedLinearArgs, Tensor> prepare(const GroupedLinearCall& call) {
  check_float_dtype(call.x, "grouped_linear: x");
  check_dim(call.x, 2, "grouped_linear: x");
  check_contiguous(call.x, "grouped_linear: x");
  check_dtype(call.weight, call.x.dtype(), "grouped_linear: weight");
  check_dim(call.weight, 3, "grouped_linear: weight");
  check_contiguous(call.weight, "grouped_linear: weight");
  RTP_LLM_CHECK(call.weight.size(2) == call.x.size(1), "grouped_linear: weight is ",
                call.weight.describe(), " and x ", call.x.describe(),
                "; expected equal numbers of columns");
  check_index(call.offsets, "grouped_linear: offsets");
  check_sizes(call.offsets, {call.weight.size(0) + 1}, "grouped_linear: offsets");
  GroupedLinearArgs args = {};
  args.x = call.x.data();
  args.weight = call.weight.data();
  args.offsets = call.offsets.data<int32_t>();
  args.rows = call.x.size(0);
  args.n = call.weight.size(1);
  args.k = call.x.size(1);
  args.experts = static_cast<int>(call.weight.size(0));
  args.dtype = call.x.dtype();
  Tensor out = empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

void check_indices(const GroupedLinearArgs& args) {
  check_offsets(args.offsets, args.experts, args.rows, "grouped_linear");
}

Prepared<SumExpertsArgs, Tensor> prepare(const SumExpertsCall& call) {
  SumExpertsArgs args = sum_args("sum_experts", call.y, call.places, call.weights);
  Tensor out = empty(call.y, {args.tokens, args.size}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

void check_indices(const SumExpertsArgs& args) {
  for (int64_t i = 0; i < args.tokens * args.k; ++i) {
    if (args.places[i] < args.rows) continue;  // a negative place adds nothing
    fail_index("sum_experts: places[", i, "] is ", args.places[i], "; expected less than the ",
               args.rows, " rows of y");
  }
}

SumExpertsArgs expert_sum_args(const AddExpertsCall& call) {
  SumExpertsArgs args = sum_args("add_experts", call.y, call.places, call.weights);
  check_dtype(call.residual, args.dtype, "add_experts: residual");
  check_sizes(call.residual, {args.tokens, args.size}, "add_experts: residual");
  check_contiguous_rows(call.residual, "add_experts: residual");
  args.out = call.residual.data();
  return args;
}

}  // namespace rtp_llm::glue
