// SPDX-License-Identifier: Apache-2.0
// Copies of rows, of tokens and of blocks of the KV cache.
#pragma once

#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"
#include "rtp_llm/kernels/common/lookup/lookup.h"

namespace rtp_llm::cuda {

// An id outside the table gives a row of zeros.
void embedding(const EmbeddingArgs& args, void* stream);

// An id without a valid row stays as it is.
void substitute_tokens(const SubstituteTokensArgs& args, void* stream);

// A pair that names a block outside the cache is skipped.
void copy_blocks(const CopyBlocksArgs& args, void* stream);

}  // namespace rtp_llm::cuda
