#include <algorithm>
#include <vector>

#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/copy_blocks.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

// A block that is written by one pair and read or written by another has no defined content.
void check_pairs(const int32_t* pairs, int64_t count, int64_t num_blocks) {
  std::vector<int32_t> sources;
  std::vector<int32_t> destinations;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t side = 0; side < 2; ++side) {
      const int32_t block = pairs[2 * i + side];
      if (block < 0 || block >= num_blocks) {
        glue::fail_index("copy_blocks: pairs[", i, "] names block ", block,
                         "; expected 0 <= block < ", num_blocks);
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

void copy(const Tensor& cache, const Tensor& pairs) {
  glue::check_float_dtype(cache, "copy_blocks: cache");
  glue::check_dim(cache, 6, "copy_blocks: cache");
  RTP_LLM_CHECK(cache.size(1) == 2, "copy_blocks: cache is ", cache.describe(),
                "; expected [layers, 2, blocks, block size, heads, head size]");
  glue::check_inner_contiguous(cache, 3, "copy_blocks: cache");
  glue::check_dtype(pairs, DType::kInt32, "copy_blocks: pairs");
  glue::check_sizes(pairs, {pairs.dim() > 0 ? pairs.size(0) : 0, 2}, "copy_blocks: pairs");
  glue::check_contiguous(pairs, "copy_blocks: pairs");
  const int64_t count = pairs.size(0);
  check_pairs(pairs.data<int32_t>(), count, cache.size(2));
  const int64_t element = element_size(cache.dtype());
  const CopyBlocksArgs args{cache.data(),
                            pairs.data<int32_t>(),
                            count,
                            cache.size(3) * cache.size(4) * cache.size(5) * element,
                            cache.stride(2) * element,
                            cache.stride(1) * element,
                            cache.stride(0) * element};
  glue::run(&copy_blocks, args, cache.size(0) * 2 * count, grain_rows(args.block_bytes * 2));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) { glue::implement<copy>(library, "copy_blocks"); }

}  // namespace rtp_llm::cpu
