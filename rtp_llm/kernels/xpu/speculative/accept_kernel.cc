// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/device.h"
#include "rtp_llm/kernels/xpu/speculative/accept.h"

namespace rtp_llm::xpu {

// An item per output.
void accept(const AcceptDraftsArgs& args) {
  const Group group = this_group();
  const int64_t output = group_index(group) * group_items(group) + item_index(group);
  if (output >= args.num_outputs) return;
  const int64_t first = args.cu_rows[output], last = args.cu_rows[output + 1] - int64_t{1};
  if (first < 0 || first > last || last >= args.num_rows) {
    const int64_t row = std::min(last, args.num_rows - 1);
    args.last_rows[output] = row < 0 ? 0 : static_cast<int32_t>(row);
    return;
  }
  int64_t row = first;
  while (row < last && args.tokens[row] == args.drafts[row]) ++row;
  args.last_rows[output] = static_cast<int32_t>(row);
  if (!args.keep) return;
  args.tokens[last] = args.tokens[row];
  args.rejected[last] = static_cast<int32_t>(last - row);
}

// A group per sequence.
void correct(const CorrectPositionsArgs& args) {
  const Group group = this_group();
  const int64_t seq = group_index(group), row = args.rows[seq];
  const int32_t shorter = row >= 0 && row < args.num_rejected ? args.rejected[row] : 0;
  if (shorter == 0) return;
  if (item_index(group) == 0) args.seq_lens[seq] -= shorter;
  const int64_t first = args.cu_seqlens_q[seq], stop = args.cu_seqlens_q[seq + 1];
  if (first < 0 || stop > args.num_tokens) return;
  for_items(group, stop - first, [&](int64_t i) {
    const int64_t token = first + i;
    const int64_t position = args.positions[token] -= shorter;
    const int64_t block = position / args.block_size;
    const bool known = position >= 0 && block < args.table_width;
    for (int64_t g = 0; g < args.num_groups; ++g) {
      int32_t& slot = args.slots[g * args.slots_stride + token];
      if (slot < 0) continue;
      const int32_t* const table =
          args.block_tables + g * args.group_stride + seq * args.table_stride;
      slot = known
                 ? static_cast<int32_t>(table[block] * args.block_size + position % args.block_size)
                 : -1;
    }
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(accept_drafts, rtp_llm::AcceptDraftsArgs) { rtp_llm::xpu::accept(args); }
RTP_LLM_XPU_ENTRY(correct_positions, rtp_llm::CorrectPositionsArgs) { rtp_llm::xpu::correct(args); }
