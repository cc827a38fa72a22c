// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/lookup/lookup_checks.h"

namespace rtp_llm::glue {

EmbeddingArgs embedding_args(const EmbeddingCall& call) {
  check_index(call.ids, "embedding: ids");
  check_float_dtype(call.table, "embedding: table");
  check_dim(call.table, 2, "embedding: table");
  check_contiguous_rows(call.table, "embedding: table");
  const int64_t element = element_size(call.table.dtype());
  return {call.ids.data<int32_t>(),
          call.table.data(),
          nullptr,
          call.ids.size(0),
          call.table.size(0),
          call.table.size(1) * element,
          call.table.stride(0) * element};
}

SubstituteTokensArgs substitute_tokens_args(const SubstituteTokensCall& call) {
  check_index(call.ids, "substitute_tokens: ids");
  check_index(call.previous, "substitute_tokens: previous");
  return {call.ids.data<int32_t>(), call.previous.data<int32_t>(), call.ids.size(0),
          call.previous.size(0)};
}

}  // namespace rtp_llm::glue
