#include "rtp_llm/kernels/common/kv_cache/copy_blocks_checks.h"
#include "rtp_llm/kernels/common/lookup/lookup_checks.h"
#include "rtp_llm/kernels/xpu/kv_cache/copy.h"
#include "rtp_llm/kernels/xpu/on_queue.h"

namespace rtp_llm::xpu {
namespace {

using glue::Tensor;

Tensor embedding_lookup(const Tensor& ids, const Tensor& table) {
  EmbeddingArgs args = glue::embedding_args(ids, table);
  Tensor out = glue::empty(table, {ids.size(0), table.size(1)}, table.dtype());
  args.out = out.data();
  const OnQueue device(table);
  embedding(device.queue(), args);
  return out;
}

void substitute_tokens_in_place(const Tensor& ids, const Tensor& previous) {
  const SubstituteTokensArgs args = glue::substitute_tokens_args(ids, previous);
  const OnQueue device(ids);
  substitute_tokens(device.queue(), args);
}

void copy_blocks_of_cache(const Tensor& cache, const Tensor& pairs) {
  const CopyBlocksArgs args = glue::copy_blocks_args(cache, pairs);
  const OnQueue device(cache);
  copy_blocks(device.queue(), args);
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) {
  glue::implement<embedding_lookup>(library, "embedding");
  glue::implement<substitute_tokens_in_place>(library, "substitute_tokens");
  glue::implement<copy_blocks_of_cache>(library, "copy_blocks");
}

}  // namespace rtp_llm::xpu
