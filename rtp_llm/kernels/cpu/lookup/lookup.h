// SPDX-License-Identifier: Apache-2.0
// Rows of a table and tokens by index. Plain copies: memcpy is already vectorised for the machine.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/lookup/lookup.h"

namespace rtp_llm::cpu {

// The first position whose id is not in [0, limit); `count` when all are.
int64_t first_out_of_range(const int32_t* ids, int64_t count, int64_t limit);

// out[t] = table[ids[t]] for t in [begin, end); the ids have been checked.
void embedding(const EmbeddingArgs& args, int64_t begin, int64_t end);

// Replaces the negative ids. The first position whose row is not there, with nothing changed from
// there on; the count of ids when all are.
int64_t substitute_tokens(const SubstituteTokensArgs& args);

}  // namespace rtp_llm::cpu
