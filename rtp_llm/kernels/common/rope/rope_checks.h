// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of rope_kv_write and describes them to kernels, for every device. What index
// tensors hold is not looked at: that is the device's own matter.
#pragma once

#include "rtp_llm/kernels/common/rope/calls.h"
#include "rtp_llm/kernels/common/rope/rope.h"

namespace rtp_llm::glue {

RopeKvWriteArgs rope_kv_write_args(const RopeKvWriteCall& call);

}  // namespace rtp_llm::glue
