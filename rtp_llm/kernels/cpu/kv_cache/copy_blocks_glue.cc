// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "rtp_llm/kernels/common/kv_cache/calls.h"
#include "rtp_llm/kernels/common/kv_cache/copy_blocks_checks.h"
#include "rtp_llm/kernels/cpu/kv_cache/copy_blocks.h"

namespace rtp_llm::cpu {
namespace {

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

void copy(const glue::CopyBlocksCall& call) {
  const CopyBlocksArgs args = glue::copy_blocks_args(call);
  check_pairs(args.pairs, args.num_pairs, args.num_blocks);
  const int64_t copies = args.num_layers * args.num_planes * args.num_pairs;
  glue::run(&copy_blocks, args, copies, grain_rows(args.block_bytes * 2));
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) { glue::implement<&copy>(library); }

}  // namespace rtp_llm::cpu
