// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/attention/decode_attention_launch.h"

namespace rtp_llm::cuda {

void decode_attention_float8(const DecodeAttentionArgs& args, void* stream) {
  if (args.dtype == DType::kBFloat16) {
    launch_decode_attention<BFloat16, uint8_t>(args, stream);
  } else {
    launch_decode_attention<Float16, uint8_t>(args, stream);
  }
}

}  // namespace rtp_llm::cuda
