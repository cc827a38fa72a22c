// SPDX-License-Identifier: Apache-2.0
// Queries and keys rotated (and normalised), keys and values into the cache, in one pass.
#pragma once

#include "rtp_llm/kernels/common/rope/fused_rope.h"

namespace rtp_llm::cuda {

// A token whose position is not a row of the table is skipped altogether; one without a place in
// the cache is not stored.
void rotate_and_store(const RotateAndStoreArgs& args, void* stream);

}  // namespace rtp_llm::cuda
