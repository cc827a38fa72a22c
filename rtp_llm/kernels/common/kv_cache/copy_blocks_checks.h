// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of copy_blocks and describes them to kernels, for every device. The pairs are
// not looked at.
#pragma once

#include "rtp_llm/kernels/common/kv_cache/calls.h"
#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"

namespace rtp_llm::glue {

CopyBlocksArgs copy_blocks_args(const CopyBlocksCall& call);

}  // namespace rtp_llm::glue
