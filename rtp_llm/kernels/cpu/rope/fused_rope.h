// SPDX-License-Identifier: Apache-2.0
// Queries and keys rotated (and normalised), keys and values into the cache, in one pass.
#pragma once

#include "rtp_llm/kernels/common/rope/fused_rope.h"

namespace rtp_llm::cpu {

// Tokens [begin, end). A token whose position is not a row of the table is skipped altogether; one
// without a place in the cache is not stored. Plain code: the engine itself runs qk_rms_norm and
// rope_kv_write, which are vectorised.
void rotate_and_store(const RotateAndStoreArgs& args, int64_t begin, int64_t end);

}  // namespace rtp_llm::cpu
