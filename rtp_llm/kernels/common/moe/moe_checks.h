// SPDX-License-Identifier: Apache-2.0
// What glue of its own calls of the checks of experts.
#pragma once

#include <string>

#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/moe.h"

namespace rtp_llm::glue {

// `out` is the residual.
SumExpertsArgs expert_sum_args(const AddExpertsCall& call);

}  // namespace rtp_llm::glue
