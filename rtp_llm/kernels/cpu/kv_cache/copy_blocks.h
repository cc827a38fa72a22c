// SPDX-License-Identifier: Apache-2.0
// Copies whole blocks of a KV cache.
#pragma once

#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"

namespace rtp_llm::cpu {

// Work items: num_layers * 2 * num_pairs copies, pairs innermost. The pairs have been checked.
void copy_blocks(const CopyBlocksArgs& args, int64_t begin, int64_t end);

}  // namespace rtp_llm::cpu
