// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/activation/activation.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

void gated_activation(Queue& queue, const GatedActivationArgs& args) {
  const int64_t groups = ceil_div(args.rows * args.size, kMaxItems);
  const std::string kernel = entry("gated_activation", args.dtype);
  submit(queue, {"activation_kernel", kernel, groups, kMaxItems}, args);
}

RTP_LLM_OPERATOR(silu_and_mul)
void silu_and_mul(Queue& queue, const SiluAndMulArgs& args) { gated_activation(queue, args); }

RTP_LLM_OPERATOR(gelu_and_mul)
void gelu_and_mul(Queue& queue, const GeluAndMulArgs& args) { gated_activation(queue, args); }

RTP_LLM_OPERATOR(gelu)
void gelu(Queue& queue, const GeluArgs& args) { gated_activation(queue, args); }

}  // namespace rtp_llm::xpu
