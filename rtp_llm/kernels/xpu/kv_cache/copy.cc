// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/kv_cache/copy.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

int64_t chunks_of(int64_t bytes) { return ceil_div(bytes, kCopyChunk); }

// Items that copy words of 16 bytes.
int64_t items_for_bytes(int64_t bytes) {
  return items_for(ceil_div(bytes < kCopyChunk ? bytes : kCopyChunk, 16));
}

}  // namespace

RTP_LLM_OPERATOR(embedding)
void embedding(Queue& queue, const EmbeddingArgs& args) {
  submit(queue,
         {"copy_kernel", "embedding", args.count * chunks_of(args.row_bytes),
          items_for_bytes(args.row_bytes)},
         args);
}

RTP_LLM_OPERATOR(substitute_tokens)
void substitute_tokens(Queue& queue, const SubstituteTokensArgs& args) {
  submit(
      queue,
      {"copy_kernel", "substitute_tokens", ceil_div(args.count, kCopyChunk), items_for(args.count)},
      args);
}

RTP_LLM_OPERATOR(copy_blocks)
void copy_blocks(Queue& queue, const CopyBlocksArgs& args) {
  const int64_t blocks = args.num_layers * args.num_planes * args.num_pairs;
  submit(queue,
         {"copy_kernel", "copy_blocks", blocks * chunks_of(args.block_bytes),
          items_for_bytes(args.block_bytes)},
         args);
}

void strided_copy(Queue& queue, const StridedCopyArgs& args) {
  const bool no_gaps = args.rows == 1 || (args.to_stride_bytes == args.row_bytes &&
                                          args.from_stride_bytes == args.row_bytes);
  if (no_gaps) {
    copy(queue, args.to, args.from, args.rows * args.row_bytes);
    return;
  }
  submit(queue,
         {"copy_kernel", "strided_copy", args.rows * chunks_of(args.row_bytes),
          items_for_bytes(args.row_bytes)},
         args);
}

void batched_copy(Queue& queue, const BatchedCopyArgs& args) {
  submit(queue,
         {"copy_kernel", "batched_copy", args.count * chunks_of(args.max_bytes),
          items_for_bytes(args.max_bytes)},
         args);
}

}  // namespace rtp_llm::xpu
