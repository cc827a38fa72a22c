// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/rope_checks.h"
#include "rtp_llm/kernels/xpu/on_queue.h"
#include "rtp_llm/kernels/xpu/rope/rope.h"

namespace rtp_llm::xpu {
namespace {

void rope_kv_write_packed(const glue::RopeKvWriteCall& call) {
  const RopeKvWriteArgs args = glue::rope_kv_write_args(call);
  const OnQueue device(call.qkv);
  rope_kv_write(device.queue(), args);
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) { glue::implement<&rope_kv_write_packed>(library); }

}  // namespace rtp_llm::xpu
