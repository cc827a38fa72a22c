// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/attention/decode_attention_launch.h"

namespace rtp_llm::cuda {

template void launch_decode_attention<Float16, uint8_t>(const DecodeAttentionArgs&, void*);

}  // namespace rtp_llm::cuda
