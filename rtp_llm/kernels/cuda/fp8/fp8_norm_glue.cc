// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_norm_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_norm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

std::tuple<Tensor, Tensor> norm_fp8(const glue::NormFp8Call& call) {
  glue::Fp8Norm result =
      glue::fp8_norm(call.residual, call.pending, call.weight, call.eps, call.norm_offset);
  const OnDevice device(call.residual);
  fp8_norm(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales)};
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) { glue::implement<&norm_fp8>(library); }

}  // namespace rtp_llm::cuda
