// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of rotate_and_store and describes them to kernels, for every device. What
// index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/fused_rope.h"

namespace rtp_llm::glue {

FusedRopeArgs fused_rope_args(const RotateAndStoreCall& call);

}  // namespace rtp_llm::glue
