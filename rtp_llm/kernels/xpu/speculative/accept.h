// SPDX-License-Identifier: Apache-2.0
// What follows rejected drafts.
#pragma once

#include "rtp_llm/kernels/common/speculative/accept.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

void accept_drafts(Queue& queue, const AcceptDraftsArgs& args);
void correct_positions(Queue& queue, const CorrectPositionsArgs& args);

}  // namespace rtp_llm::xpu
