// SPDX-License-Identifier: Apache-2.0
// Tokens as block-scaled FP8 at the places of their experts.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_scatter.h"

namespace rtp_llm::cuda {

void fp8_scatter(const Fp8ScatterArgs& args, void* stream);

}  // namespace rtp_llm::cuda
