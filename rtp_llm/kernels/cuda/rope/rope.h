// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of packed Q, K, V rows, and the write of K and V into the paged cache.
#pragma once

#include "rtp_llm/kernels/common/rope/rope.h"

namespace rtp_llm::cuda {

// A token whose position is not a row of the table is neither rotated nor stored, one whose slot is
// outside the cache is not stored.
void rope_kv_write(const RopeKvWriteArgs& args, void* stream);

}  // namespace rtp_llm::cuda
