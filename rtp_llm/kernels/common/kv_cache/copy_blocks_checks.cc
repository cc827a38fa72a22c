// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/kv_cache/copy_blocks_checks.h"

namespace rtp_llm::glue {

CopyBlocksArgs copy_blocks_args(const CopyBlocksCall& call) {
  check_float_dtype(call.cache, "copy_blocks: cache");
  check_dim(call.cache, 6, "copy_blocks: cache");
  RTP_LLM_CHECK(call.cache.size(1) == 1 || call.cache.size(1) == 2, "copy_blocks: cache is ",
                call.cache.describe(),
                "; expected [layers, 1 or 2 planes, blocks, block size, heads, head size]");
  check_inner_contiguous(call.cache, 3, "copy_blocks: cache");
  check_dtype(call.pairs, DType::kInt32, "copy_blocks: pairs");
  check_sizes(call.pairs, {call.pairs.dim() > 0 ? call.pairs.size(0) : 0, 2}, "copy_blocks: pairs");
  check_contiguous(call.pairs, "copy_blocks: pairs");
  const int64_t element = element_size(call.cache.dtype());
  return {call.cache.data(),
          call.pairs.data<int32_t>(),
          call.cache.size(0),
          call.cache.size(1),
          call.pairs.size(0),
          call.cache.size(2),
          call.cache.size(3) * call.cache.size(4) * call.cache.size(5) * element,
          call.cache.stride(2) * element,
          call.cache.stride(1) * element,
          call.cache.stride(0) * element};
}

}  // namespace rtp_llm::glue
