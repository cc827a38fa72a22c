// SPDX-License-Identifier: Apache-2.0
// What other kernels' glue calls of the root-mean-square norms.
#pragma once

#include "rtp_llm/kernels/common/norm/norm.h"

namespace rtp_llm::cuda {

void rms_norm(const RmsNormArgs& args, void* stream);

}  // namespace rtp_llm::cuda
