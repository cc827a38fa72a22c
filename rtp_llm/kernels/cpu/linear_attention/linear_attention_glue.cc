// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"

#include "rtp_llm/kernels/common/linear_attention/linear_attention_checks.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

Tensor convolve(const glue::CausalConv1dCall& call) {
  auto prepared = glue::prepare(call);
  check_causal_conv1d(prepared.args);
  run_causal_conv1d(prepared.args, glue::parallel_for());
  return std::move(prepared.result);
}

Tensor delta_rule(const glue::GatedDeltaRuleCall& call) {
  auto prepared = glue::prepare(call);
  check_gated_delta_rule(prepared.args);
  const ParallelFor& parallel = glue::parallel_for();
  // torch aligns to 64 bytes.
  const int64_t floats = gated_delta_rule_scratch(prepared.args, parallel.num_threads());
  const Tensor scratch = glue::empty(call.qkv, {floats}, DType::kFloat32);
  run_gated_delta_rule(prepared.args, scratch.data<float>(), parallel);
  return std::move(prepared.result);
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&convolve>(library);
  glue::implement<&delta_rule>(library);
}

}  // namespace rtp_llm::cpu
