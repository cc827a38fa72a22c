// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the embedding and of the resolution of tokens for every device.
#include "rtp_llm/kernels/common/lookup/calls.h"
#include "rtp_llm/kernels/common/lookup/lookup.h"

namespace rtp_llm::glue {

Prepared<EmbeddingArgs, Tensor> prepare(const EmbeddingCall& call) {
  check_index(call.ids, "embedding: ids");
  check_float_dtype(call.table, "embedding: table");
  check_dim(call.table, 2, "embedding: table");
  check_contiguous_rows(call.table, "embedding: table");
  const int64_t element = element_size(call.table.dtype());
  Tensor out = empty(call.table, {call.ids.size(0), call.table.size(1)}, call.table.dtype());
  return {{call.ids.data<int32_t>(), call.table.data(), out.data(), call.ids.size(0),
           call.table.size(0), call.table.size(1) * element, call.table.stride(0) * element},
          std::move(out)};
}

void check_indices(const EmbeddingArgs& args) {
  check_range(args.ids, args.count, 0, args.table_rows, "embedding: ids", "0 <= id < ",
              ", the rows of the table");
}

Prepared<SubstituteTokensArgs, void> prepare(const SubstituteTokensCall& call) {
  check_index(call.ids, "substitute_tokens: ids");
  check_index(call.previous, "substitute_tokens: previous");
  return {{call.ids.data<int32_t>(), call.previous.data<int32_t>(), call.ids.size(0),
           call.previous.size(0)}};
}

}  // namespace rtp_llm::glue
