// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/lookup/calls.h"
#include "rtp_llm/kernels/common/lookup/lookup_checks.h"
#include "rtp_llm/kernels/cpu/lookup/lookup.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

Tensor embedding_lookup(const glue::EmbeddingCall& call) {
  EmbeddingArgs args = glue::embedding_args(call);
  const int64_t bad = first_out_of_range(args.ids, args.count, args.table_rows);
  if (bad < args.count) {
    glue::fail_index("embedding: ids[", bad, "] is ", args.ids[bad], "; expected 0 <= id < ",
                     args.table_rows, ", the rows of the table");
  }
  Tensor out = glue::empty(call.table, {args.count, call.table.size(1)}, call.table.dtype());
  args.out = out.data();
  glue::run(&embedding, args, args.count, grain_rows(args.row_bytes * 2));
  return out;
}

void substitute_tokens_in_place(const glue::SubstituteTokensCall& call) {
  const SubstituteTokensArgs args = glue::substitute_tokens_args(call);
  const int64_t bad = substitute_tokens(args);
  if (bad < args.count) {
    glue::fail_index("substitute_tokens: ids[", bad, "] is ", args.ids[bad], "; expected at least ",
                     -args.rows, ", which names the last row of previous");
  }
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&embedding_lookup>(library);
  glue::implement<&substitute_tokens_in_place>(library);
}

}  // namespace rtp_llm::cpu
