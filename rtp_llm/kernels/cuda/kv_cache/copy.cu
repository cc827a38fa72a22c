// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/kv_cache/copy.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// What a thread copies at once: 16 bytes, or an element of the smallest type.
using Wide = Pack<uint32_t, 4>;
using Narrow = uint16_t;

// Calls body(Unit{}) with the widest unit that divides all of these.
template <class Body>
void visit_unit(std::initializer_list<int64_t> values, Body&& body) {
  if (multiples(sizeof(Wide), values)) {
    body(Wide{});
  } else {
    body(Narrow{});
  }
}

// Ids on the first axis of the grid, chunks of a row on the second.
template <class Unit>
__global__ void __launch_bounds__(kThreads) copy_rows(EmbeddingArgs args) {
  const int64_t at = int64_t{blockIdx.y} * kThreads + thread_index();
  const int64_t size = args.row_bytes / static_cast<int64_t>(sizeof(Unit));
  if (at >= size) return;
  const int64_t id = args.ids[blockIdx.x];
  Unit unit{};
  if (id >= 0 && id < args.table_rows) {
    const char* const row = static_cast<const char*>(args.table) + id * args.table_stride_bytes;
    unit = reinterpret_cast<const Unit*>(row)[at];
  }
  static_cast<Unit*>(args.out)[blockIdx.x * size + at] = unit;
}

__global__ void __launch_bounds__(kThreads) substitute_ids(SubstituteTokensArgs args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + thread_index();
  if (at >= args.count) return;
  const int64_t row = -1 - int64_t{args.ids[at]};
  if (row >= 0 && row < args.rows) args.ids[at] = max(args.previous[row], 0);
}

// Chunks of a block on the first axis of the grid, pairs on the second, planes on the third.
template <class Unit>
__global__ void __launch_bounds__(kThreads) copy_pairs(CopyBlocksArgs args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + thread_index();
  if (at >= args.block_bytes / static_cast<int64_t>(sizeof(Unit))) return;
  const auto planes = static_cast<unsigned int>(args.num_planes);
  char* const plane = static_cast<char*>(args.cache) +
                      blockIdx.z / planes * args.layer_stride_bytes +
                      blockIdx.z % planes * args.plane_stride_bytes;
  for (int64_t pair = blockIdx.y; pair < args.num_pairs; pair += gridDim.y) {
    const int64_t from = args.pairs[2 * pair];
    const int64_t to = args.pairs[2 * pair + 1];
    if (from < 0 || from >= args.num_blocks || to < 0 || to >= args.num_blocks) continue;
    reinterpret_cast<Unit*>(plane + to * args.block_stride_bytes)[at] =
        reinterpret_cast<const Unit*>(plane + from * args.block_stride_bytes)[at];
  }
}

}  // namespace

RTP_LLM_OPERATOR(embedding)
void embedding(const EmbeddingArgs& args, void* stream) {
  if (args.count == 0 || args.row_bytes == 0) return;
  visit_unit({address(args.table), address(args.out), args.row_bytes, args.table_stride_bytes},
             [&](auto unit) {
               using Unit = decltype(unit);
               const int64_t chunks = ceil_div(args.row_bytes, kThreads * sizeof(Unit));
               const dim3 grid(blocks(args.count, "embedding"), side_blocks(chunks, "embedding"));
               copy_rows<Unit><<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
             });
  check_launch("embedding");
}

RTP_LLM_OPERATOR(substitute_tokens)
void substitute_tokens(const SubstituteTokensArgs& args, void* stream) {
  if (args.count == 0) return;
  const dim3 grid(blocks(ceil_div(args.count, kThreads), "substitute_tokens"));
  substitute_ids<<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
  check_launch("substitute_tokens");
}

RTP_LLM_OPERATOR(copy_blocks)
void copy_blocks(const CopyBlocksArgs& args, void* stream) {
  const int64_t planes = args.num_layers * args.num_planes;
  if (planes == 0 || args.num_pairs == 0 || args.block_bytes == 0) return;
  constexpr int64_t kMaxPairs = 4096;  // of the grid; its blocks take the others in turn
  visit_unit({address(args.cache), args.block_bytes, args.block_stride_bytes,
              args.plane_stride_bytes, args.layer_stride_bytes},
             [&](auto unit) {
               using Unit = decltype(unit);
               const int64_t chunks = ceil_div(args.block_bytes, kThreads * sizeof(Unit));
               const int64_t pairs = args.num_pairs < kMaxPairs ? args.num_pairs : kMaxPairs;
               const dim3 grid(blocks(chunks, "copy_blocks"), static_cast<unsigned int>(pairs),
                               side_blocks(planes, "copy_blocks"));
               copy_pairs<Unit><<<grid, kThreads, 0, static_cast<Stream>(stream)>>>(args);
             });
  check_launch("copy_blocks");
}

}  // namespace rtp_llm::cuda
