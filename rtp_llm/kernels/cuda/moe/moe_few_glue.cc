// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/moe_checks.h"
#include "rtp_llm/kernels/cuda/moe/moe_few.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

void check_sizes_of(const glue::RouteExpertsCall& call) {
  constexpr int64_t kMaxExperts = 1024;
  glue::check_dtype(call.logits, DType::kFloat32, "route_experts: logits");
  glue::check_dim(call.logits, 2, "route_experts: logits");
  glue::check_contiguous_rows(call.logits, "route_experts: logits");
  const int64_t tokens = call.logits.size(0), experts = call.logits.size(1);
  const int64_t shared = call.shared_gate.has_value() ? 1 : 0;
  RTP_LLM_CHECK(tokens <= kRoutedTokens && experts + shared <= kMaxExperts,
                "route_experts: logits is ", call.logits.describe(), "; expected at most ",
                kRoutedTokens, " tokens and ", kMaxExperts, " experts with the shared one");
  RTP_LLM_CHECK(call.top_k >= 1 && call.top_k <= kRoutedExperts && call.top_k <= experts,
                "route_experts: top_k is ", call.top_k, "; expected from 1 to ", kRoutedExperts,
                " of the ", experts, " experts");
  const bool fits = call.first >= 0 && call.count >= 0 && call.first + call.count <= experts;
  RTP_LLM_CHECK(fits && (call.count > 0 || call.first == 0), "route_experts: ", call.count,
                " experts from ", call.first, " on, of ", experts);
}

// Takes x and the shared expert's gate, which weighs its output.
void set_gate(RouteArgs& args, const glue::RouteExpertsCall& call) {
  RTP_LLM_CHECK(call.x.dtype() == DType::kBFloat16 || call.x.dtype() == DType::kFloat16,
                "route_experts: x is ", call.x.describe(), "; expected bfloat16 or float16");
  glue::check_dim(call.x, 2, "route_experts: x");
  glue::check_contiguous(call.x, "route_experts: x");
  glue::check_sizes(call.x, {args.topk.tokens, call.x.size(1)}, "route_experts: x");
  args.hidden = call.x.size(1);
  args.dtype = call.x.dtype();
  args.x = call.x.data();
  if (!call.shared_gate.has_value()) return;
  glue::check_dtype(*call.shared_gate, args.dtype, "route_experts: shared_gate");
  glue::check_sizes(*call.shared_gate, {1, args.hidden}, "route_experts: shared_gate");
  glue::check_contiguous(*call.shared_gate, "route_experts: shared_gate");
  args.gate = call.shared_gate->data();
  const auto row_bytes = static_cast<uintptr_t>(args.hidden * element_size(args.dtype));
  RTP_LLM_CHECK(
      (reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.gate) | row_bytes) %
              16 ==
          0,
      "route_experts: rows of x and shared_gate do not begin at multiples of 16 bytes");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> route(const glue::RouteExpertsCall& call) {
  check_sizes_of(call);
  RouteArgs args = {};
  args.topk.logits = call.logits.data<float>();
  args.topk.logits_stride = call.logits.stride(0);
  args.topk.tokens = call.logits.size(0);
  args.topk.experts = static_cast<int>(call.logits.size(1));
  args.topk.k = static_cast<int>(call.top_k);
  args.topk.renormalize = call.renormalize;
  set_gate(args, call);
  const int shared = args.gate == nullptr ? 0 : 1;
  const int64_t tokens = args.topk.tokens, k = args.topk.k + shared;
  args.first = static_cast<int>(call.first);
  const int here = call.count == 0 ? args.topk.experts : static_cast<int>(call.count);
  args.sort.experts = here + shared;
  args.sort.count = tokens * k;
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> result{
      glue::empty(call.logits, {tokens, k}, DType::kFloat32),
      glue::empty(call.logits, {args.sort.count}, DType::kInt32),
      glue::empty(call.logits, {tokens, k}, DType::kInt32),
      glue::empty(call.logits, {args.sort.experts + 1}, DType::kInt32),
      glue::empty(call.logits, {args.sort.count}, DType::kInt32)};
  args.topk.weights = std::get<0>(result).data<float>();
  args.sort.rows = std::get<1>(result).data<int32_t>();
  args.sort.places = std::get<2>(result).data<int32_t>();
  args.sort.offsets = std::get<3>(result).data<int32_t>();
  args.tiles = std::get<4>(result).data<int32_t>();
  const Tensor ids = glue::empty(call.logits, {tokens, k}, DType::kInt32);
  args.ids = ids.data<int32_t>();
  const OnDevice device(call.logits);
  route_experts(args, device.stream());
  return result;
}

void add(const glue::AddExpertsCall& call) {
  const SumExpertsArgs args = glue::expert_sum_args(call);
  const OnDevice device(call.y);
  add_experts(args, call.residual.stride(0), device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&route>(library);
  glue::implement<&add>(library);
}

}  // namespace rtp_llm::cuda
