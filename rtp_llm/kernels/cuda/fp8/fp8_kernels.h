// SPDX-License-Identifier: Apache-2.0
// The kernels that fp8_gemm.cu chooses from, in files of their own: each is a set of shapes.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"

namespace rtp_llm::cuda {

// Plain, swapped: every block takes a tile, or a part of its channels, and ends.
void fp8_stream(const Fp8GemmArgs& args, int sms, void* stream);
// Masked, or plain without indices, swapped: at most `sms` multiprocessors are used.
void fp8_stream_masked(const Fp8GemmArgs& args, int sms, void* stream);
// Not swapped, every form: at most `sms` multiprocessors are used, and at least two.
void fp8_tiles(const Fp8GemmArgs& args, int sms, void* stream);

}  // namespace rtp_llm::cuda
