// SPDX-License-Identifier: Apache-2.0
// Copies whole blocks of a KV cache.
#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"

#include <cstring>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Pairs innermost.
RTP_LLM_OPERATOR(copy_blocks, args.num_layers* args.num_planes* args.num_pairs,
                 grain_rows(args.block_bytes * 2))
void copy_blocks(const CopyBlocksArgs& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t plane = item / args.num_pairs;
    const int32_t* pair = args.pairs + 2 * (item % args.num_pairs);
    char* base = static_cast<char*>(args.cache) +
                 plane / args.num_planes * args.layer_stride_bytes +
                 plane % args.num_planes * args.plane_stride_bytes;
    std::memcpy(base + pair[1] * args.block_stride_bytes, base + pair[0] * args.block_stride_bytes,
                static_cast<size_t>(args.block_bytes));
  }
}

}  // namespace rtp_llm::cpu
