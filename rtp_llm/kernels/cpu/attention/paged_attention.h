// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache, read in place through block tables.
//
// One call serves any mix of prefills, chunks of prefills and decodes. The work is cut into items
// (sequence, group of KV heads, tile of query tokens, part of the keys); the cut depends on the
// sequence alone, so a sequence's result does not depend on its batch or on the number of threads.
// All query heads of a KV head are handled together: keys and values are read once per tile.
#pragma once

#include <cstddef>

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Throws std::runtime_error when lengths, table and cache do not fit together.
void check_paged_attention(const PagedAttentionArgs& args);

// Bytes of scratch, aligned to 64, that run_paged_attention() needs for this batch.
size_t paged_attention_scratch_bytes(const PagedAttentionArgs& args, int num_threads);

// Writes every row of out; tokens past cu_seqlens_q[num_seqs] and queries that see no key get
// zeros. `scratch` holds paged_attention_scratch_bytes(args, parallel.num_threads()).
void run_paged_attention(const PagedAttentionArgs& args, void* scratch,
                         const ParallelFor& parallel);

}  // namespace rtp_llm::cpu
