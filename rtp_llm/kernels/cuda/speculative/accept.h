// SPDX-License-Identifier: Apache-2.0
// Handles rejected drafts. Outputs and sequences with rows or tokens out of range are not touched.
#pragma once

#include "rtp_llm/kernels/common/speculative/accept.h"

namespace rtp_llm::cuda {

// A group of lanes for each output.
void accept_drafts(const AcceptDraftsArgs& args, void* stream);

// A block of threads for each sequence.
void correct_positions(const CorrectPositionsArgs& args, void* stream);

}  // namespace rtp_llm::cuda
