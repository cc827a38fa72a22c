// SPDX-License-Identifier: Apache-2.0
// Decode attention of a whole layer in one kernel. NVIDIA only: tensor cores, movmatrix, e4m3fn.
#pragma once

#include "rtp_llm/kernels/common/attention/decode_attention.h"

namespace rtp_llm::cuda {

// Bytes that args.parts needs.
int64_t decode_attention_scratch(const DecodeAttentionArgs& args);

// Throws std::runtime_error for heads that no kernel is made for. Waits for nothing, allocates
// nothing; overlaps the end of the kernel in front (launch_overlapped).
void decode_attention(const DecodeAttentionArgs& given, void* scratch, void* stream);

}  // namespace rtp_llm::cuda
