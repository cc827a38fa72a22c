// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/mxfp4_experts.h"

namespace rtp_llm::glue {
namespace {

constexpr int64_t kPanelRows = 32;
constexpr int64_t kPanelColumns = 64;
constexpr int64_t kBlock = 32;

// The arguments that both products have, but for the rows and what becomes of them.
template <class Call>
Mxfp4ExpertsArgs common_args(const Call& call) {
  for (const Tensor* const each : {&call.x, &call.bias}) {
    check_dtype(*each, DType::kBFloat16, "mxfp4_experts: x and bias");
    check_dim(*each, 2, "mxfp4_experts: x and bias");
    check_contiguous(*each, "mxfp4_experts: x and bias");
  }
  for (const Tensor* const each : {&call.weight, &call.scales}) {
    check_dtype(*each, DType::kInt8, "mxfp4_experts: weight and scales");
    check_dim(*each, 3, "mxfp4_experts: weight and scales");
    check_contiguous(*each, "mxfp4_experts: weight and scales");
  }
  Mxfp4ExpertsArgs args = {};
  const int64_t experts = call.weight.size(0);
  args.n = call.weight.size(1);
  args.k = call.x.size(1);
  RTP_LLM_CHECK(args.n % kPanelRows == 0 && args.k % kPanelColumns == 0 && args.n > 0 &&
                    args.k > 0 && experts > 0 && call.weight.size(2) * 2 == args.k,
                "mxfp4_experts: weight is ", call.weight.describe(), " and x ", call.x.describe(),
                "; expected rows in panels of ", kPanelRows, ", columns of ", kPanelColumns,
                ", and a byte for every two columns");
  check_sizes(call.scales, {experts, args.n, args.k / kBlock}, "mxfp4_experts: scales");
  check_sizes(call.bias, {experts, args.n}, "mxfp4_experts: bias");
  check_index(call.offsets, "mxfp4_experts: offsets");
  check_sizes(call.offsets, {experts + 1}, "mxfp4_experts: offsets");
  RTP_LLM_CHECK((reinterpret_cast<uintptr_t>(call.x.data()) |
                 reinterpret_cast<uintptr_t>(call.weight.data()) |
                 reinterpret_cast<uintptr_t>(call.scales.data())) %
                        16 ==
                    0,
                "mxfp4_experts: x, weight and scales begin at multiples of 16 bytes");
  args.x = call.x.data();
  args.weight = call.weight.data();
  args.scales = call.scales.data();
  args.bias = call.bias.data();
  args.offsets = call.offsets.template data<int32_t>();
  args.experts = static_cast<int>(experts);
  args.top_k = 1;
  return args;
}

}  // namespace

Prepared<Mxfp4ExpertsArgs, Tensor> prepare(const Mxfp4ExpertsGateUpCall& call) {
  Mxfp4ExpertsArgs args = common_args(call);
  check_index(call.rows, "mxfp4_experts_gate_up: rows");
  check_dim(call.rows, 1, "mxfp4_experts_gate_up: rows");
  args.entries = call.rows.size(0);
  RTP_LLM_CHECK(call.top_k >= 1 && args.entries == call.x.size(0) * call.top_k,
                "mxfp4_experts_gate_up: rows is ", call.rows.describe(), " for x ",
                call.x.describe(), " and top_k ", call.top_k);
  args.top_k = static_cast<int>(call.top_k);
  args.rows = call.rows.data<int32_t>();
  args.alpha = static_cast<float>(call.alpha);
  args.limit = static_cast<float>(call.limit);
  Tensor out = empty(call.x, {args.entries, args.n / 2}, DType::kBFloat16);
  args.out = out.data();
  return {args, std::move(out)};
}

Prepared<Mxfp4ExpertsArgs, Tensor> prepare(const Mxfp4ExpertsDownCall& call) {
  Mxfp4ExpertsArgs args = common_args(call);
  args.entries = call.x.size(0);
  Tensor out = empty(call.x, {args.entries, args.n}, DType::kBFloat16);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
