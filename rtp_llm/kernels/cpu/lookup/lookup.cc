// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/lookup/lookup.h"

#include <cstring>

namespace rtp_llm::cpu {

int64_t first_out_of_range(const int32_t* ids, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= limit) return i;
  }
  return count;
}

void embedding(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const char* const table = static_cast<const char*>(args.table);
  char* out = static_cast<char*>(args.out) + begin * args.row_bytes;
  for (int64_t t = begin; t < end; ++t, out += args.row_bytes) {
    std::memcpy(out, table + args.ids[t] * args.table_stride_bytes,
                static_cast<size_t>(args.row_bytes));
  }
}

int64_t substitute_tokens(const SubstituteTokensArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    if (args.ids[i] >= 0) continue;
    const int64_t row = -1 - int64_t{args.ids[i]};
    if (row >= args.rows) return i;
    args.ids[i] = args.previous[row] < 0 ? 0 : args.previous[row];
  }
  return args.count;
}

}  // namespace rtp_llm::cpu
