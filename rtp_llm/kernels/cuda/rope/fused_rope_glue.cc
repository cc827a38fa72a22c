// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/fused_rope_checks.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/rope/fused_rope.h"

namespace rtp_llm::cuda {
namespace {

void rotate_and_store(const glue::RotateAndStoreCall& call) {
  const FusedRopeArgs args = glue::fused_rope_args(call);
  const OnDevice device(call.q);
  fused_rope(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) { glue::implement<&rotate_and_store>(library); }

}  // namespace rtp_llm::cuda
