// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/torch_linear.h"

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  rtp_llm::glue::implement<&rtp_llm::glue::call_torch_linear>(library);
}
