// SPDX-License-Identifier: Apache-2.0
// GEMMs of block-scaled FP8 on GPUs of compute capability 9.0.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"

namespace rtp_llm::cuda {

// Leaves masked rows and rows of padding as they are. RuntimeError on other GPUs.
void fp8_gemm(const Fp8GemmArgs& args, void* stream);

}  // namespace rtp_llm::cuda
