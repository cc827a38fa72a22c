// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of sums over ranks and describes them to kernels, for every device.
#pragma once

#include "rtp_llm/kernels/common/collective/all_reduce.h"
#include "rtp_llm/kernels/common/collective/calls.h"
#include "rtp_llm/kernels/common/collective/rank_buffers_checks.h"

namespace rtp_llm::glue {

Prepared<AllReduceArgs, void> prepare(const AllReduceCall& call);
Prepared<AllReduceAddRmsNormArgs, void> prepare(const AllReduceAddRmsNormCall& call);
Prepared<AllReduceAddRmsNormFp8Args, std::tuple<Tensor, Tensor>> prepare(
    const AllReduceAddRmsNormFp8Call& call);

}  // namespace rtp_llm::glue
