// SPDX-License-Identifier: Apache-2.0
// Operators that quantise activations first, each of which is two kernels.
#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_activation_checks.h"
#include "rtp_llm/kernels/common/fp8/fp8_gemm_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_activation.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor quantize_and_multiply(const glue::DeepGemmFp8Call& call) {
  glue::check_dim(call.lhs, 2, "deep_gemm_fp8: lhs");
  const glue::Fp8Activation x =
      glue::fp8_activation(call.lhs, std::nullopt, false, "deep_gemm_fp8: lhs");
  Fp8GemmArgs args =
      glue::fp8_gemm_args({x.q, x.scales, call.rhs_data, call.rhs_scale}, Fp8Form::kPlain, nullptr,
                          {call.user_deep_gemm_num_sm, call.swap_ab});
  Tensor out = glue::fp8_gemm_result(args, call.lhs);
  const OnDevice device(call.lhs);
  fp8_activation(x.args, device.stream());
  fp8_gemm(args, device.stream());
  return out;
}

void multiply_masked(const glue::DeepGemmGroupedFp8MaskedCall& call) {
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
      glue::fp8_gemm_args({quantized ? call.lhs : x->q, quantized ? *call.lhs_scale : x->scales,
                           call.rhs_data, call.rhs_scale},
                          Fp8Form::kMasked, &call.masked_m,
                          {call.user_deep_gemm_num_sm, call.swap_ab, call.expected_m});
  glue::set_out(args, call.output);
  if (!quantized) fp8_activation(x->args, device.stream());
  fp8_gemm(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&quantize_and_multiply>(library);
  glue::implement<&multiply_masked>(library);
}

}  // namespace rtp_llm::cuda
