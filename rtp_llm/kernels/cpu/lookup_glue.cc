#include "rtp_llm/kernels/arguments/lookup_checks.h"
#include "rtp_llm/kernels/cpu/lookup.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

Tensor embedding_lookup(const Tensor& ids, const Tensor& table) {
  EmbeddingArgs args = glue::embedding_args(ids, table);
  const int64_t bad = first_out_of_range(args.ids, args.count, args.table_rows);
  if (bad < args.count) {
    glue::fail_index("embedding: ids[", bad, "] is ", args.ids[bad], "; expected 0 <= id < ",
                     args.table_rows, ", the rows of the table");
  }
  Tensor out = glue::empty(table, {args.count, table.size(1)}, table.dtype());
  args.out = out.data();
  glue::run(&embedding, args, args.count, grain_rows(args.row_bytes * 2));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<embedding_lookup>(library, "embedding");
}

}  // namespace rtp_llm::cpu
