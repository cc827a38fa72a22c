// SPDX-License-Identifier: Apache-2.0
// The lightning indexer: its cache write, the logits of cached keys, and the slots of the best.
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/mla/indexer.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(
    // Tokens [begin, end). Positions and slots have been checked.
    void indexer_rotate_and_store(const IndexerRotateAndStoreArgs& args, int64_t begin,
                                  int64_t end);
    // Items [begin, end): the tiles of the first token, then those of the next.
    void paged_mqa_logits(const PagedMqaLogitsArgs& args, int64_t begin, int64_t end);)

void top_k_slots(const TopKSlotsArgs& args, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu
