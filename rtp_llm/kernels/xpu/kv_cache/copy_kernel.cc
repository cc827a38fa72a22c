// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/kv_cache/copy.h"

#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {
namespace {

using Word = sycl::vec<uint32_t, 4>;

// The part of a region that a group works on, and whether all of it is aligned for words.
struct Chunk {
  char* to;
  const char* from;
  int64_t size;

  bool in_words() const {
    const auto low_bits = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                          static_cast<uint64_t>(size);
    return low_bits % sizeof(Word) == 0;
  }
};

Chunk chunk_of(void* to, const void* from, int64_t bytes, int64_t index) {
  const int64_t first = index * kCopyChunk;
  return {static_cast<char*>(to) + first, static_cast<const char*>(from) + first,
          std::min(bytes - first, kCopyChunk)};
}

void copy_chunk(const Group& group, const Chunk& chunk) {
  if (chunk.size <= 0) return;
  if (chunk.in_words()) {
    for_items(group, chunk.size / static_cast<int64_t>(sizeof(Word)), [&](int64_t i) {
      reinterpret_cast<Word*>(chunk.to)[i] = reinterpret_cast<const Word*>(chunk.from)[i];
    });
  } else {
    for_items(group, chunk.size, [&](int64_t i) { chunk.to[i] = chunk.from[i]; });
  }
}

int64_t chunks_of(int64_t bytes) { return (bytes + kCopyChunk - 1) / kCopyChunk; }

}  // namespace

// A group per chunk of a row.
void embedding(const EmbeddingArgs& args) {
  const Group group = this_group();
  const int64_t chunks = chunks_of(args.row_bytes);
  const int64_t row = group_index(group) / chunks;
  const int64_t id = args.ids[row];
  const bool known = id >= 0 && id < args.table_rows;
  const Chunk chunk =
      chunk_of(static_cast<char*>(args.out) + row * args.row_bytes,
               static_cast<const char*>(args.table) + (known ? id : 0) * args.table_stride_bytes,
               args.row_bytes, group_index(group) % chunks);
  if (known) {
    copy_chunk(group, chunk);
  } else {
    // All bits set are NaN in every float type.
    for_items(group, chunk.size, [&](int64_t i) { chunk.to[i] = static_cast<char>(0xff); });
  }
}

// A group per chunk of the ids.
void substitute_tokens(const SubstituteTokensArgs& args) {
  const Group group = this_group();
  const int64_t first = group_index(group) * kCopyChunk;
  for_items(group, std::min(args.count - first, kCopyChunk), [&](int64_t i) {
    const int64_t row = -1 - int64_t{args.ids[first + i]};
    if (row >= 0 && row < args.rows) args.ids[first + i] = std::max(args.previous[row], 0);
  });
}

// A group per chunk of (layer, plane, pair).
void copy_blocks(const CopyBlocksArgs& args) {
  const Group group = this_group();
  const int64_t chunks = chunks_of(args.block_bytes);
  const int64_t item = group_index(group) / chunks;
  const int64_t pair = item % args.num_pairs;
  const int64_t plane = item / args.num_pairs % args.num_planes;
  const int64_t layer = item / args.num_pairs / args.num_planes;
  const int64_t from = args.pairs[2 * pair];
  const int64_t to = args.pairs[2 * pair + 1];
  if (from < 0 || from >= args.num_blocks || to < 0 || to >= args.num_blocks) return;
  char* const blocks = static_cast<char*>(args.cache) + layer * args.layer_stride_bytes +
                       plane * args.plane_stride_bytes;
  copy_chunk(group, chunk_of(blocks + to * args.block_stride_bytes,
                             blocks + from * args.block_stride_bytes, args.block_bytes,
                             group_index(group) % chunks));
}

// A group per chunk of a row.
void strided_copy(const StridedCopyArgs& args) {
  const Group group = this_group();
  const int64_t chunks = chunks_of(args.row_bytes);
  const int64_t row = group_index(group) / chunks;
  copy_chunk(group, chunk_of(static_cast<char*>(args.to) + row * args.to_stride_bytes,
                             static_cast<const char*>(args.from) + row * args.from_stride_bytes,
                             args.row_bytes, group_index(group) % chunks));
}

// A group per chunk of a region.
void batched_copy(const BatchedCopyArgs& args) {
  const Group group = this_group();
  const int64_t chunks = chunks_of(args.max_bytes);
  const int64_t region = group_index(group) / chunks;
  copy_chunk(group, chunk_of(reinterpret_cast<void*>(args.to[region]),
                             reinterpret_cast<const void*>(args.from[region]), args.bytes[region],
                             group_index(group) % chunks));
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_ENTRY(embedding, rtp_llm::EmbeddingArgs) { rtp_llm::xpu::embedding(args); }
RTP_LLM_XPU_ENTRY(substitute_tokens, rtp_llm::SubstituteTokensArgs) {
  rtp_llm::xpu::substitute_tokens(args);
}
RTP_LLM_XPU_ENTRY(copy_blocks, rtp_llm::CopyBlocksArgs) { rtp_llm::xpu::copy_blocks(args); }
RTP_LLM_XPU_ENTRY(strided_copy, rtp_llm::xpu::StridedCopyArgs) { rtp_llm::xpu::strided_copy(args); }
RTP_LLM_XPU_ENTRY(batched_copy, rtp_llm::xpu::BatchedCopyArgs) { rtp_llm::xpu::batched_copy(args); }
