// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_scatter_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_scatter.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor> scatter_fp8(const glue::ScatterFp8Call& call) {
  glue::Fp8Scatter result = glue::fp8_scatter(call.x, call.ids, call.places, call.offsets, false);
  const OnDevice device(call.x);
  fp8_scatter(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales), std::move(result.rows),
          std::move(result.counts)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> scatter_fp8_ragged(
    const glue::ScatterFp8RaggedCall& call) {
  glue::Fp8Scatter result = glue::fp8_scatter(call.x, call.ids, call.places, call.offsets, true);
  const OnDevice device(call.x);
  fp8_scatter(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales), std::move(result.rows),
          std::move(result.starts), std::move(result.counts)};
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&scatter_fp8>(library);
  glue::implement<&scatter_fp8_ragged>(library);
}

}  // namespace rtp_llm::cuda
