// SPDX-License-Identifier: Apache-2.0
// Arguments of what follows the drafts that were not right. rtp_llm/ops/speculative says what is
// computed. Indices are not checked: kernels skip what is not there.
#pragma once

#include <cstdint>

namespace rtp_llm {

struct AcceptDraftsArgs {
  int32_t* last_rows;      // [num_outputs]
  int32_t* tokens;         // [num_rows]
  int32_t* rejected;       // [at least num_rows]
  const int32_t* drafts;   // [num_rows]
  const int32_t* cu_rows;  // [num_outputs + 1]
  int64_t num_outputs, num_rows;
  bool keep;
};

struct CorrectPositionsArgs {
  int32_t* positions;           // [num_tokens]
  int32_t* seq_lens;            // [num_seqs]
  int32_t* slots;               // [num_groups, num_tokens]
  const int32_t* block_tables;  // [num_groups, num_seqs, table_width]
  const int32_t* cu_seqlens_q;  // [num_seqs + 1]
  const int32_t* rejected;      // [num_rejected]
  const int32_t* rows;          // [num_seqs]
  int64_t num_tokens, num_seqs, num_groups, table_width, num_rejected;
  int64_t slots_stride, group_stride, table_stride;  // in elements
  int64_t block_size;
};

}  // namespace rtp_llm
