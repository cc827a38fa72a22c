#include "rtp_llm/kernels/common/lookup/lookup_checks.h"

namespace rtp_llm::glue {

EmbeddingArgs embedding_args(const Tensor& ids, const Tensor& table) {
  check_index(ids, "embedding: ids");
  check_float_dtype(table, "embedding: table");
  check_dim(table, 2, "embedding: table");
  check_contiguous_rows(table, "embedding: table");
  const int64_t element = element_size(table.dtype());
  return {ids.data<int32_t>(),
          table.data(),
          nullptr,
          ids.size(0),
          table.size(0),
          table.size(1) * element,
          table.stride(0) * element};
}

SubstituteTokensArgs substitute_tokens_args(const Tensor& ids, const Tensor& previous) {
  check_index(ids, "substitute_tokens: ids");
  check_index(previous, "substitute_tokens: previous");
  return {ids.data<int32_t>(), previous.data<int32_t>(), ids.size(0), previous.size(0)};
}

}  // namespace rtp_llm::glue
