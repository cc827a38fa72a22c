// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/activation/activation_checks.h"
#include "rtp_llm/kernels/common/activation/calls.h"
#include "rtp_llm/kernels/cpu/activation/activation.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

// About what 128 KiB of memory traffic costs: exponentials, not bytes, bound these.
constexpr int64_t kGrainChunks = 4;

Tensor gated(const Tensor& x, Activation activation, const char* what) {
  GatedActivationArgs args = glue::gated_activation_args(x, activation, what);
  Tensor out = glue::empty_with_last(x, args.size);
  args.out = out.data();
  const int64_t chunks = args.rows * chunks_of_row(args);
  glue::run(RTP_LLM_PICK_ISA(gated_activation), args, chunks, kGrainChunks);
  return out;
}

Tensor silu_and_mul(const glue::SiluAndMulCall& call) {
  return gated(call.x, Activation::kSilu, "silu_and_mul: x");
}

Tensor gelu_and_mul(const glue::GeluAndMulCall& call) {
  return gated(call.x, call.tanh ? Activation::kGeluTanh : Activation::kGelu, "gelu_and_mul: x");
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&silu_and_mul>(library);
  glue::implement<&gelu_and_mul>(library);
}

}  // namespace rtp_llm::cpu
