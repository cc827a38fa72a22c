// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/activation/activation_checks.h"
#include "rtp_llm/kernels/common/activation/calls.h"
#include "rtp_llm/kernels/cuda/activation/activation.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor gated(const Tensor& x, Activation activation, const char* what) {
  GatedActivationArgs args = glue::gated_activation_args(x, activation, what);
  Tensor out = glue::empty_with_last(x, args.size);
  args.out = out.data();
  const OnDevice device(x);
  gated_activation(args, device.stream());
  return out;
}

Tensor silu_and_mul(const glue::SiluAndMulCall& call) {
  return gated(call.x, Activation::kSilu, "silu_and_mul: x");
}

Tensor gelu_and_mul(const glue::GeluAndMulCall& call) {
  return gated(call.x, call.tanh ? Activation::kGeluTanh : Activation::kGelu, "gelu_and_mul: x");
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&silu_and_mul>(library);
  glue::implement<&gelu_and_mul>(library);
}

}  // namespace rtp_llm::cuda
