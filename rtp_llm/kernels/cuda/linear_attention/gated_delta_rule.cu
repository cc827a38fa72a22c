// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/linear_attention/linear_attention.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_launch.h"
#include "rtp_llm/kernels/cuda/linear_attention/gated_delta_step.h"

namespace rtp_llm::cuda {

RTP_LLM_OPERATOR(gated_delta_rule)
void gated_delta_rule(const GatedDeltaRuleArgs& args, void* stream) {
  if (args.sequences.num_tokens == 0) return;
  if (args.key_size > 512) {
    throw std::runtime_error("gated_delta_rule: key heads of " + std::to_string(args.key_size) +
                             " elements; the kernel takes at most 512");
  }
  if (!multiples(kAccessBytes,
                 {address(args.state), args.state_stride * element_size(args.state_dtype),
                  address(args.ring_k), args.ring_k_stride * element_size(args.dtype),
                  address(args.ring_u), args.ring_u_stride * int64_t{sizeof(float)}})) {
    throw std::runtime_error(
        "gated_delta_rule: state, ring_k or ring_u has blocks that do not begin at multiples of 16 "
        "bytes");
  }
#if !defined(__HIPCC__)
  if (gated_delta_step(args, stream)) return check_launch("gated_delta_rule");
#endif
  visit_float_dtype(args.dtype, [&](auto element) {
    if (args.state_dtype == DType::kFloat32) {
      launch_delta_rule<decltype(element), float>(args, stream);
    } else {
      launch_delta_rule<decltype(element), BFloat16>(args, stream);
    }
  });
  check_launch("gated_delta_rule");
}

}  // namespace rtp_llm::cuda
