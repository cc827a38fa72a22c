// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/torch_linear.h"
#include "rtp_llm/kernels/xpu/on_queue.h"

RTP_LLM_XPU_OPERATORS(library) {
  rtp_llm::glue::implement<&rtp_llm::glue::call_torch_linear>(library);
}
