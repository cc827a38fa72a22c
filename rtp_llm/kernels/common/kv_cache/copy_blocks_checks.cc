// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "rtp_llm/kernels/common/kv_cache/calls.h"
#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"

namespace rtp_llm::glue {

Prepared<CopyBlocksArgs, void> prepare(const CopyBlocksCall& call) {
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
  return {{call.cache.data(), call.pairs.data<int32_t>(), call.cache.size(0), call.cache.size(1),
           call.pairs.size(0), call.cache.size(2),
           call.cache.size(3) * call.cache.size(4) * call.cache.size(5) * element,
           call.cache.stride(2) * element, call.cache.stride(1) * element,
           call.cache.stride(0) * element}};
}

// A block that is written by one pair and read or written by another has no defined content.
void check_indices(const CopyBlocksArgs& args) {
  const int32_t* const pairs = args.pairs;
  const int64_t num_blocks = args.num_blocks;
  std::vector<int32_t> sources;
  std::vector<int32_t> destinations;
  for (int64_t i = 0; i < args.num_pairs; ++i) {
    for (int64_t side = 0; side < 2; ++side) {
      const int32_t block = pairs[2 * i + side];
      if (block < 0 || block >= num_blocks) {
        fail_index("copy_blocks: pairs[", i, "] names block ", block, "; expected 0 <= block < ",
                   num_blocks);
      }
      (side == 0 ? sources : destinations).push_back(block);
    }
  }
  std::sort(sources.begin(), sources.end());
  std::sort(destinations.begin(), destinations.end());
  const auto twice = std::adjacent_find(destinations.begin(), destinations.end());
  RTP_LLM_CHECK(twice == destinations.end(), "copy_blocks: block ", *twice,
                " is the destination of two pairs");
  for (const int32_t block : destinations) {
    RTP_LLM_CHECK(!std::binary_search(sources.begin(), sources.end(), block), "copy_blocks: block ",
                  block, " is both a source and a destination");
  }
}

}  // namespace rtp_llm::glue
