// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_activation_checks.h"
#include "rtp_llm/kernels/common/fp8/fp8_gemm_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_activation.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

constexpr int64_t kSwappedRows = 64;  // when the caller leaves it open

void limit(Fp8GemmArgs& args, int64_t num_sms, std::optional<bool> swap_ab, int64_t rows) {
  RTP_LLM_CHECK(num_sms == -1 || num_sms > 0, "fp8_gemm: num_sms is ", num_sms,
                "; expected -1 for all, or at least 1");
  args.num_sms = static_cast<int>(num_sms < INT32_MAX ? num_sms : INT32_MAX);
  args.swap_ab = swap_ab.value_or(rows <= kSwappedRows);
  args.expected_rows = rows;
}

Tensor multiplied(Fp8GemmArgs& args, const Tensor& q) {
  Tensor out = glue::fp8_gemm_result(args, q);
  const OnDevice device(q);
  fp8_gemm(args, device.stream());
  return out;
}

Tensor fp8_linear(const glue::Fp8LinearCall& call) {
  Fp8GemmArgs args = glue::fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales},
                                         Fp8Form::kPlain, nullptr);
  limit(args, call.num_sms, call.swap_ab, args.rows);
  return multiplied(args, call.q);
}

// The rows that a group has as a rule: what the caller expects, cut off at what there are.
int64_t expected_rows(const Fp8GemmArgs& args, int64_t expected_m) {
  return expected_m > 0 && expected_m < args.rows ? expected_m : args.rows;
}

Fp8GemmArgs masked_args(const glue::Fp8Operands& operands, const Tensor& masked_m,
                        int64_t expected_m, int64_t num_sms, std::optional<bool> swap_ab) {
  Fp8GemmArgs args = glue::fp8_gemm_args(operands, Fp8Form::kMasked, &masked_m);
  limit(args, num_sms, swap_ab, expected_rows(args, expected_m));
  return args;
}

Tensor fp8_grouped_masked(const glue::Fp8GroupedMaskedCall& call) {
  Fp8GemmArgs args = masked_args({call.q, call.scales, call.weight, call.weight_scales},
                                 call.masked_m, call.expected_m, call.num_sms, call.swap_ab);
  return multiplied(args, call.q);
}

Tensor fp8_grouped_ragged(const glue::Fp8GroupedRaggedCall& call) {
  Fp8GemmArgs args = glue::fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales},
                                         Fp8Form::kRagged, &call.counts);
  glue::check_index(call.starts, "fp8_gemm: starts");
  glue::check_sizes(call.starts, {args.groups + 1}, "fp8_gemm: starts");
  args.starts = call.starts.data<int32_t>();
  limit(args, call.num_sms, call.swap_ab, expected_rows(args, call.expected_m));
  return multiplied(args, call.q);
}

Tensor fp8_grouped_contiguous(const glue::Fp8GroupedContiguousCall& call) {
  Fp8GemmArgs args = glue::fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales},
                                         Fp8Form::kContiguous, &call.m_indices);
  limit(args, call.num_sms, false, args.rows);
  return multiplied(args, call.q);
}

Tensor deep_gemm_fp8(const glue::DeepGemmFp8Call& call) {
  glue::check_dim(call.lhs, 2, "deep_gemm_fp8: lhs");
  const glue::Fp8Activation x =
      glue::fp8_activation(call.lhs, std::nullopt, false, "deep_gemm_fp8: lhs");
  Fp8GemmArgs args =
      glue::fp8_gemm_args({x.q, x.scales, call.rhs_data, call.rhs_scale}, Fp8Form::kPlain, nullptr);
  limit(args, call.user_deep_gemm_num_sm, call.swap_ab, args.rows);
  Tensor out = glue::fp8_gemm_result(args, call.lhs);
  const OnDevice device(call.lhs);
  fp8_activation(x.args, device.stream());
  fp8_gemm(args, device.stream());
  return out;
}

void deep_gemm_grouped_fp8_masked(const glue::DeepGemmGroupedFp8MaskedCall& call) {
  constexpr const char* kWhat = "deep_gemm_grouped_fp8_masked: lhs";
  const bool quantized = call.lhs.dtype() == DType::kFloat8E4m3fn;
  RTP_LLM_CHECK(quantized == call.lhs_scale.has_value(), kWhat, " is ", call.lhs.describe(),
                quantized ? "; lhs_scale is missing" : "; lhs_scale belongs to e4m3 only");
  glue::check_dim(call.lhs, 3, kWhat);
  const OnDevice device(call.lhs);
  std::optional<glue::Fp8Activation> x;
  if (!quantized) {
    x.emplace(glue::fp8_activation(call.lhs, std::nullopt, false, kWhat));
    glue::check_index(call.masked_m, "masked_m");
    glue::check_sizes(call.masked_m, {call.lhs.size(0)}, "masked_m");
    x->args.masked_m = call.masked_m.data<int32_t>();
  }
  Fp8GemmArgs args =
      masked_args({quantized ? call.lhs : x->q, quantized ? *call.lhs_scale : x->scales,
                   call.rhs_data, call.rhs_scale},
                  call.masked_m, call.expected_m, call.user_deep_gemm_num_sm, call.swap_ab);
  glue::set_out(args, call.output);
  if (!quantized) fp8_activation(x->args, device.stream());
  fp8_gemm(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&fp8_linear>(library);
  glue::implement<&fp8_grouped_masked>(library);
  glue::implement<&fp8_grouped_contiguous>(library);
  glue::implement<&fp8_grouped_ragged>(library);
  glue::implement<&deep_gemm_fp8>(library);
  glue::implement<&deep_gemm_grouped_fp8_masked>(library);
}

}  // namespace rtp_llm::cuda
