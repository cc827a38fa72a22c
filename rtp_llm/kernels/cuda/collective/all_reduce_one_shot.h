// SPDX-License-Identifier: Apache-2.0
// The sums of all_reduce.h in one shot that are followed by a norm.
#pragma once

#include "rtp_llm/kernels/common/collective/all_reduce.h"

namespace rtp_llm::cuda {

void all_reduce_one_shot(const AllReduceAddRmsNormArgs& args, void* stream);
void all_reduce_one_shot(const AllReduceAddRmsNormFp8Args& args, void* stream);

}  // namespace rtp_llm::cuda
