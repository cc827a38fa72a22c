// SPDX-License-Identifier: Apache-2.0
// The sum of all_reduce.h in two shots, for three ranks or more.
#pragma once

#include "rtp_llm/kernels/common/collective/all_reduce.h"

namespace rtp_llm::cuda {

void all_reduce_two_shot(const AllReduceArgs& args, void* stream);

}  // namespace rtp_llm::cuda
