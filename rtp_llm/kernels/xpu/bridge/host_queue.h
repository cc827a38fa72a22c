// SPDX-License-Identifier: Apache-2.0
// The queue of the tests' bridge.
#pragma once

#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

Queue& host_queue();

}  // namespace rtp_llm::xpu
