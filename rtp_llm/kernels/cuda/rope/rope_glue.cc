// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/rope_checks.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/rope/rope.h"

namespace rtp_llm::cuda {
namespace {

void rope_kv_write_packed(const glue::RopeKvWriteCall& call) {
  const RopeKvWriteArgs args = glue::rope_kv_write_args(call);
  const OnDevice device(call.qkv);
  rope_kv_write(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&rope_kv_write_packed>(library);
}

}  // namespace rtp_llm::cuda
