// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/speculative/accept.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

RTP_LLM_OPERATOR(accept_drafts, args.num_outputs, 64)
void accept_drafts(const AcceptDraftsArgs& args, int64_t begin, int64_t end) {
  for (int64_t output = begin; output < end; ++output) {
    const int64_t first = args.cu_rows[output], last = args.cu_rows[output + 1] - 1;
    if (first < 0 || first > last || last >= args.num_rows) {
      const int64_t row = last < args.num_rows ? last : args.num_rows - 1;
      args.last_rows[output] = row < 0 ? 0 : static_cast<int32_t>(row);
      continue;
    }
    int64_t row = first;
    while (row < last && args.tokens[row] == args.drafts[row]) ++row;
    args.last_rows[output] = static_cast<int32_t>(row);
    if (!args.keep) continue;
    args.tokens[last] = args.tokens[row];
    args.rejected[last] = static_cast<int32_t>(last - row);
  }
}

RTP_LLM_OPERATOR(correct_positions, args.num_seqs, 64)
void correct_positions(const CorrectPositionsArgs& args, int64_t begin, int64_t end) {
  for (int64_t seq = begin; seq < end; ++seq) {
    const int64_t row = args.rows[seq];
    const int32_t shorter = row >= 0 && row < args.num_rejected ? args.rejected[row] : 0;
    if (shorter == 0) continue;
    args.seq_lens[seq] -= shorter;
    const int64_t first = args.cu_seqlens_q[seq], stop = args.cu_seqlens_q[seq + 1];
    if (first < 0 || stop > args.num_tokens) continue;
    for (int64_t token = first; token < stop; ++token) {
      const int64_t position = args.positions[token] -= shorter;
      const int64_t block = position / args.block_size;
      const bool known = position >= 0 && block < args.table_width;
      for (int64_t group = 0; group < args.num_groups; ++group) {
        int32_t& slot = args.slots[group * args.slots_stride + token];
        if (slot < 0) continue;
        const int32_t* const table =
            args.block_tables + group * args.group_stride + seq * args.table_stride;
        slot =
            known
                ? static_cast<int32_t>(table[block] * args.block_size + position % args.block_size)
                : -1;
      }
    }
  }
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
