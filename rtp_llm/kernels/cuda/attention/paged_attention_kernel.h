// SPDX-License-Identifier: Apache-2.0
// The kernels of paged_attention.cu, whatever multiplies: a block for each tile of query rows and
// part of the keys, and one that puts the parts together.
#pragma once

#include "rtp_llm/kernels/cuda/attention/paged_attention_tile.h"

namespace rtp_llm::cuda {

constexpr int kMaxParts = 32;
constexpr int kKeysOfPart = 256;  // at least
constexpr int kMaxHeadDim = 512;

// Into how many parts the keys of a sequence are cut.
__host__ __device__ inline int parts_of(int64_t num_keys) {
  const int64_t parts = (num_keys + kKeysOfPart - 1) / kKeysOfPart;
  return static_cast<int>(parts < 1 ? 1 : parts < kMaxParts ? parts : kMaxParts);
}

// How a launch cuts the batch.
struct Cut {
  int tiles;  // of the query rows of a sequence and a KV head, at most
  int parts;  // 1: whole sequences
  int rows;   // of a tile that may be used: rows of scratch

  // A sequence that is longer than the host said gets no more parts than there is scratch for.
  __device__ int parts_of_sequence(int num_keys) const { return min(parts_of(num_keys), parts); }
};

// Where a part of a row is kept: top, total, then the sum.
__device__ inline float* scratch_row(const PagedAttentionArgs& args, const Cut& cut, float* scratch,
                                     int sequence, int kv_head, int part, int row) {
  const int64_t item = (int64_t{sequence} * args.num_kv_heads + kv_head) * cut.parts + part;
  return scratch + (item * cut.rows + row) * (args.head_dim + 2);
}

// The factor of a finished sum; 0 when the row saw nothing.
__device__ inline float final_factor(const PagedAttentionArgs& args, int head, float top,
                                     float total) {
  if (total == 0.0f) return 0.0f;
  if (args.sinks == nullptr) return 1.0f / total;
  return 1.0f / (total + expf(args.sinks[head] - top));
}

template <class T>
__device__ inline T* out_row(const PagedAttentionArgs& args, int token, int head) {
  return static_cast<T*>(args.out) + (int64_t{token} * args.num_heads + head) * args.head_dim;
}

// The rows of out that belong to no sequence, by all blocks whose z is num_seqs.
template <class T>
__device__ inline void clear_tail(const PagedAttentionArgs& args) {
  const int64_t row = int64_t{args.num_heads} * args.head_dim;
  const int used = args.num_seqs == 0 ? 0 : args.cu_seqlens_q[args.num_seqs];
  const int64_t step = int64_t{gridDim.x} * gridDim.y * thread_count();
  int64_t i = max(used, 0) * row + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * thread_count() +
              thread_index();
  for (; i < args.num_tokens * row; i += step) static_cast<T*>(args.out)[i] = from_float<T>(0.0f);
}

// The keys that any row of a tile sees, cut to a part.
template <class Shape>
__device__ inline KeyPart keys_of_part(const PagedAttentionArgs& args, const Sequence& sequence,
                                       const Cut& cut, int tile, int part) {
  const int lowest = QueryRow(args, sequence, tile * Shape::kRows).position(sequence);
  const int end = min(tile * Shape::kRows + Shape::kRows - 1,
                      sequence.num_queries * (args.num_heads / args.num_kv_heads) - 1);
  const int highest = QueryRow(args, sequence, end).position(sequence);
  KeyPart keys{Visible(args, lowest, sequence.num_keys).first,
               Visible(args, highest, sequence.num_keys).last};
  if (cut.parts == 1) return keys;
  const int parts = cut.parts_of_sequence(sequence.num_keys);
  const int size = (sequence.num_keys + parts - 1) / parts;
  keys.first = max(keys.first, part * size);
  keys.last = min(keys.last, (part + 1) * size);
  return keys;
}
// Tiles and parts on the first axis of the grid, KV heads on the second, sequences on the third.
template <class Shape, class T>
__global__ void __launch_bounds__(Shape::kThreads)
    attend_tiles(PagedAttentionArgs args, Cut cut, float* scratch) {
  const int index = blockIdx.z;
  if (index == args.num_seqs) return clear_tail<T>(args);
  const int tile = blockIdx.x / cut.parts;
  const int part = blockIdx.x % cut.parts;
  const Sequence sequence(args, index);
  const int rows = sequence.num_queries * (args.num_heads / args.num_kv_heads);
  if (tile * Shape::kRows >= rows || part >= cut.parts_of_sequence(sequence.num_keys)) return;
  const int row_of_tile = Shape::row_of_thread();
  const QueryRow query(args, sequence, tile * Shape::kRows + row_of_tile);
  Gathered<Shape> row;
  Shape::template attend<T>(args, sequence, query,
                            keys_of_part<Shape>(args, sequence, cut, tile, part), row);
  if (!query.present || (cut.parts > 1 && row_of_tile >= cut.rows)) return;
  if (cut.parts == 1) {
    const float factor = final_factor(args, query.head, row.top, row.total);
    T* const out = out_row<T>(args, sequence.first_token + query.token, query.head);
#pragma unroll
    for (int i = 0; i < Shape::kColumns; ++i) {
      const int c = Shape::column_of(i);
      if (c < args.head_dim) out[c] = from_float<T>(row.sum[i] * factor);
    }
    return;
  }
  float* const kept = scratch_row(args, cut, scratch, index, blockIdx.y, part, row_of_tile);
  if (Shape::leads_row()) {
    kept[0] = row.top;
    kept[1] = row.total;
  }
#pragma unroll
  for (int i = 0; i < Shape::kColumns; ++i) {
    const int c = Shape::column_of(i);
    if (c < args.head_dim) kept[2 + c] = row.sum[i];
  }
}

// Puts the parts of a query row together: rows on the first axis of the grid, KV heads on the
// second, sequences on the third; a thread for each column.
template <class T>
__global__ void __launch_bounds__(kMaxHeadDim)
    join_parts(PagedAttentionArgs args, Cut cut, float* scratch) {
  const Sequence sequence(args, blockIdx.z);
  const QueryRow query(args, sequence, blockIdx.x);
  const int c = thread_index();
  if (!query.present || c >= args.head_dim) return;
  const int parts = cut.parts_of_sequence(sequence.num_keys);
  float top = -INFINITY;
  for (int part = 0; part < parts; ++part) {
    const float* const kept =
        scratch_row(args, cut, scratch, blockIdx.z, blockIdx.y, part, query.row);
    top = fmaxf(top, kept[0]);
  }
  float total = 0.0f;
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) {
    const float* const kept =
        scratch_row(args, cut, scratch, blockIdx.z, blockIdx.y, part, query.row);
    const float factor = kept[1] == 0.0f ? 0.0f : expf(kept[0] - top);
    total += kept[1] * factor;
    sum += kept[2 + c] * factor;
  }
  out_row<T>(args, sequence.first_token + query.token, query.head)[c] =
      from_float<T>(sum * final_factor(args, query.head, top, total));
}

}  // namespace rtp_llm::cuda
