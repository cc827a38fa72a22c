// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/speculative/accept_checks.h"

namespace rtp_llm::glue {
namespace {

int32_t* index_of(const Tensor& index, int64_t size, const char* what) {
  check_index(index, what);
  check_sizes(index, {size}, what);
  return index.data<int32_t>();
}

}  // namespace

Prepared<AcceptDraftsArgs, Tensor> prepare(const AcceptDraftsCall& call) {
  check_index(call.tokens, "accept_drafts: tokens");
  check_index(call.rejected, "accept_drafts: rejected");
  check_index(call.cu_rows, "accept_drafts: cu_rows");
  AcceptDraftsArgs args = {};
  args.num_rows = call.tokens.size(0);
  args.num_outputs = call.cu_rows.size(0) - 1;
  RTP_LLM_CHECK(args.num_outputs >= 0, "accept_drafts: cu_rows is ", call.cu_rows.describe(),
                "; expected at least one number");
  RTP_LLM_CHECK(call.rejected.size(0) >= args.num_rows, "accept_drafts: rejected is ",
                call.rejected.describe(), "; expected at least ", args.num_rows, " numbers");
  args.tokens = call.tokens.data<int32_t>();
  args.rejected = call.rejected.data<int32_t>();
  args.drafts = index_of(call.drafts, args.num_rows, "accept_drafts: drafts");
  args.cu_rows = call.cu_rows.data<int32_t>();
  args.keep = call.keep;
  Tensor last_rows = empty(call.cu_rows, {args.num_outputs}, DType::kInt32);
  args.last_rows = last_rows.data<int32_t>();
  return {args, std::move(last_rows)};
}

Prepared<CorrectPositionsArgs, void> prepare(const CorrectPositionsCall& call) {
  check_index(call.positions, "correct_positions: positions");
  check_index(call.seq_lens, "correct_positions: seq_lens");
  check_index(call.rejected, "correct_positions: rejected");
  CorrectPositionsArgs args = {};
  args.num_tokens = call.positions.size(0);
  args.num_seqs = call.seq_lens.size(0);
  args.num_rejected = call.rejected.size(0);
  const Tensor &slots = call.slots, &tables = call.block_tables;
  check_dim(slots, 2, "correct_positions: slots");
  args.num_groups = slots.size(0);
  check_dtype(slots, DType::kInt32, "correct_positions: slots");
  check_sizes(slots, {args.num_groups, args.num_tokens}, "correct_positions: slots");
  check_contiguous_rows(slots, "correct_positions: slots");
  check_dim(tables, 3, "correct_positions: block_tables");
  args.table_width = tables.size(2);
  check_dtype(tables, DType::kInt32, "correct_positions: block_tables");
  check_sizes(tables, {args.num_groups, args.num_seqs, args.table_width},
              "correct_positions: block_tables");
  check_inner_contiguous(tables, 1, "correct_positions: block_tables");
  RTP_LLM_CHECK(call.block_size >= 1 && call.block_size <= INT32_MAX,
                "correct_positions: blocks of ", call.block_size,
                " tokens; expected 1 to 2147483647");
  args.positions = call.positions.data<int32_t>();
  args.seq_lens = call.seq_lens.data<int32_t>();
  args.slots = slots.data<int32_t>();
  args.block_tables = tables.data<int32_t>();
  args.cu_seqlens_q =
      index_of(call.cu_seqlens_q, args.num_seqs + 1, "correct_positions: cu_seqlens_q");
  args.rejected = call.rejected.data<int32_t>();
  args.rows = index_of(call.rows, args.num_seqs, "correct_positions: rows");
  args.slots_stride = slots.stride(0);
  args.group_stride = tables.stride(0);
  args.table_stride = tables.stride(1);
  args.block_size = call.block_size;
  return {args};
}

}  // namespace rtp_llm::glue
