// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of packed Q, K, V rows, and the write of K and V into the paged cache.
#pragma once

#include "rtp_llm/kernels/common/rope/rope.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// A position outside the table gives NaN; a slot outside the cache is not stored.
void rope_kv_write(Queue& queue, const RopeKvWriteArgs& args);

}  // namespace rtp_llm::xpu
