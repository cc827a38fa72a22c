// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/speculative/accept.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/speculative/output_rows.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kGroups = 4;  // outputs of a block
constexpr int kThreads = kGroups * kGroup;

__global__ void __launch_bounds__(kThreads) accept_rows(AcceptDraftsArgs args) {
  const int64_t output = int64_t{blockIdx.x} * kGroups + thread_index() / kGroup;
  if (output >= args.num_outputs) return;
  const Span rows(args.cu_rows, args.num_rows, output);
  const int lane = thread_index() % kGroup;
  if (rows.count == 0) {
    const int64_t before = min(int64_t{args.cu_rows[output + 1]}, args.num_rows) - 1;
    if (lane == 0) args.last_rows[output] = static_cast<int32_t>(max(before, int64_t{0}));
    return;
  }
  const int accepted = rows.last_accepted(args.tokens, args.drafts, lane);
  if (lane != 0) return;
  const int64_t row = rows.begin + accepted, last = rows.begin + rows.count - 1;
  args.last_rows[output] = static_cast<int32_t>(row);
  if (!args.keep) return;
  args.tokens[last] = args.tokens[row];
  args.rejected[last] = static_cast<int32_t>(last - row);
}

__global__ void __launch_bounds__(kThreads) correct_sequence(CorrectPositionsArgs args) {
  const int64_t seq = blockIdx.x, row = args.rows[seq];
  const int shorter = row >= 0 && row < args.num_rejected ? args.rejected[row] : 0;
  if (shorter == 0) return;
  if (thread_index() == 0) args.seq_lens[seq] -= shorter;
  const int64_t begin = args.cu_seqlens_q[seq], end = args.cu_seqlens_q[seq + 1];
  if (begin < 0 || end > args.num_tokens) return;
  const int block_size = static_cast<int>(args.block_size);
  for (int64_t token = begin + thread_index(); token < end; token += kThreads) {
    const int position = args.positions[token] - shorter, block = position / block_size;
    args.positions[token] = position;
    const bool known = position >= 0 && block < args.table_width;
    for (int64_t group = 0; group < args.num_groups; ++group) {
      int32_t& slot = args.slots[group * args.slots_stride + token];
      if (slot < 0) continue;
      const int32_t* const table =
          args.block_tables + group * args.group_stride + seq * args.table_stride;
      slot = known ? table[block] * block_size + position % block_size : -1;
    }
  }
}

}  // namespace

RTP_LLM_OPERATOR(accept_drafts)
void accept_drafts(const AcceptDraftsArgs& args, void* stream) {
  if (args.num_outputs == 0) return;
  const dim3 grid(blocks(ceil_div(args.num_outputs, kGroups), "accept_drafts"));
  accept_rows<<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
  check_launch("accept_drafts");
}

RTP_LLM_OPERATOR(correct_positions)
void correct_positions(const CorrectPositionsArgs& args, void* stream) {
  if (args.num_seqs == 0) return;
  const dim3 grid(blocks(args.num_seqs, "correct_positions"));
  correct_sequence<<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
  check_launch("correct_positions");
}

}  // namespace rtp_llm::cuda
