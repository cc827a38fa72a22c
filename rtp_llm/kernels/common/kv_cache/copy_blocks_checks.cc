#include "rtp_llm/kernels/common/kv_cache/copy_blocks_checks.h"

namespace rtp_llm::glue {

CopyBlocksArgs copy_blocks_args(const Tensor& cache, const Tensor& pairs) {
  check_float_dtype(cache, "copy_blocks: cache");
  check_dim(cache, 6, "copy_blocks: cache");
  RTP_LLM_CHECK(cache.size(1) == 1 || cache.size(1) == 2, "copy_blocks: cache is ",
                cache.describe(),
                "; expected [layers, 1 or 2 planes, blocks, block size, heads, head size]");
  check_inner_contiguous(cache, 3, "copy_blocks: cache");
  check_dtype(pairs, DType::kInt32, "copy_blocks: pairs");
  check_sizes(pairs, {pairs.dim() > 0 ? pairs.size(0) : 0, 2}, "copy_blocks: pairs");
  check_contiguous(pairs, "copy_blocks: pairs");
  const int64_t element = element_size(cache.dtype());
  return {cache.data(),
          pairs.data<int32_t>(),
          cache.size(0),
          cache.size(1),
          pairs.size(0),
          cache.size(2),
          cache.size(3) * cache.size(4) * cache.size(5) * element,
          cache.stride(2) * element,
          cache.stride(1) * element,
          cache.stride(0) * element};
}

}  // namespace rtp_llm::glue
