#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/lookup.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

Tensor embedding_lookup(const Tensor& ids, const Tensor& table) {
  glue::check_index(ids, "embedding: ids");
  glue::check_float_dtype(table, "embedding: table");
  glue::check_dim(table, 2, "embedding: table");
  glue::check_contiguous_rows(table, "embedding: table");
  const int64_t count = ids.size(0);
  const int64_t bad = first_out_of_range(ids.data<int32_t>(), count, table.size(0));
  if (bad < count) {
    glue::fail_index("embedding: ids[", bad, "] is ", ids.data<int32_t>()[bad],
                     "; expected 0 <= id < ", table.size(0), ", the rows of the table");
  }
  Tensor out = glue::empty(table, {count, table.size(1)}, table.dtype());
  const int64_t element = element_size(table.dtype());
  const EmbeddingArgs args{ids.data<int32_t>(), table.data(), out.data(), table.size(1) * element,
                           table.stride(0) * element};
  glue::run(&embedding, args, count, grain_rows(args.row_bytes * 2));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<embedding_lookup>(library, "embedding");
}

}  // namespace rtp_llm::cpu
