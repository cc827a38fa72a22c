// SPDX-License-Identifier: Apache-2.0
// Rows of a table and tokens by index. Plain copies: memcpy is already vectorised for the machine.
#include "rtp_llm/kernels/common/lookup/lookup.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

RTP_LLM_OPERATOR(embedding, args.count, grain_rows(args.row_bytes * 2))
void embedding(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const char* const table = static_cast<const char*>(args.table);
  char* out = static_cast<char*>(args.out) + begin * args.row_bytes;
  for (int64_t t = begin; t < end; ++t, out += args.row_bytes) {
    std::memcpy(out, table + args.ids[t] * args.table_stride_bytes,
                static_cast<size_t>(args.row_bytes));
  }
}

RTP_LLM_OPERATOR(substitute_tokens)
void substitute_tokens(const SubstituteTokensArgs& args, const ParallelFor&) {
  for (int64_t i = 0; i < args.count; ++i) {
    if (args.ids[i] >= 0) continue;
    const int64_t row = -1 - int64_t{args.ids[i]};
    if (row >= args.rows) {
      throw std::out_of_range("substitute_tokens: ids[" + std::to_string(i) + "] is " +
                              std::to_string(args.ids[i]) + "; expected at least " +
                              std::to_string(-args.rows) +
                              ", which names the last row of previous");
    }
    args.ids[i] = args.previous[row] < 0 ? 0 : args.previous[row];
  }
}

}  // namespace rtp_llm::cpu
