// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_activation_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_activation.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

std::tuple<Tensor, Tensor> quantized(const Tensor& x, const OptionalTensor& masked_m, bool gated,
                                     const char* what) {
  glue::Fp8Activation result = glue::fp8_activation(x, masked_m, gated, what);
  const OnDevice device(x);
  fp8_activation(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales)};
}

std::tuple<Tensor, Tensor> fp8_quantize(const glue::Fp8QuantizeCall& call) {
  return quantized(call.x, call.masked_m, false, "fp8_quantize: x");
}

std::tuple<Tensor, Tensor> silu_and_mul_fp8(const glue::SiluAndMulFp8Call& call) {
  return quantized(call.x, call.masked_m, true, "silu_and_mul_fp8: x");
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&fp8_quantize>(library);
  glue::implement<&silu_and_mul_fp8>(library);
}

}  // namespace rtp_llm::cuda
