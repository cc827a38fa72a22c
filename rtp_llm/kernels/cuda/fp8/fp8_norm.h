// SPDX-License-Identifier: Apache-2.0
// Norms with a block-scaled FP8 result.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_norm.h"

namespace rtp_llm::cuda {

void norm_fp8(const NormFp8Args& args, void* stream);

}  // namespace rtp_llm::cuda
