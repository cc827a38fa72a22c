// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/mla/calls.h"
#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cuda/mla/mla.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

void rotate_and_store(const glue::MlaRotateAndStoreCall& call) {
  const MlaStoreArgs args = glue::mla_store_args(call);
  const OnDevice device(call.q);
  mla_rotate_and_store(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) { glue::implement<&rotate_and_store>(library); }

}  // namespace rtp_llm::cuda
