// SPDX-License-Identifier: Apache-2.0
// One tile of query rows against a range of keys, by one block of threads: 16 lanes for each row.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/cuda/gpu.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

constexpr int kRowLanes = 16;

// Sizes of tiles for heads of up to kMaxDim elements, so that they fit into the shared memory of
// every device.
template <int kMaxDim_, int kRows_, int kKeys_>
struct TileShape {
  static constexpr int kMaxDim = kMaxDim_;
  static constexpr int kRows = kRows_;  // query rows of a tile
  static constexpr int kKeys = kKeys_;  // keys at a time
  static constexpr int kThreads = kRows * kRowLanes;
  static constexpr int kColumns = kMaxDim / kRowLanes;  // of the result, for each lane
  static constexpr int kKeysOfLane = kKeys / kRowLanes;

  // Rows are one float longer than a head, so that lanes meet different banks.
  static constexpr int64_t shared_floats(int head_dim) {
    return int64_t{kRows + kKeys} * (head_dim + 1) + kRows * kKeys;
  }
};

// A sequence of the batch, with lengths cut to what is there.
struct Sequence {
  int first_token;
  int num_queries;
  int num_keys;
  const int32_t* blocks;

  __device__ Sequence(const PagedAttentionArgs& args, int index) {
    const int tokens = static_cast<int>(args.num_tokens);
    first_token = within(args.cu_seqlens_q[index], tokens);
    num_queries = max(within(args.cu_seqlens_q[index + 1], tokens) - first_token, 0);
    const int64_t room = args.table_width * args.block_size;
    num_keys = max(args.keys_of(index), 0);
    if (num_keys > room) num_keys = static_cast<int>(room);
    blocks = args.block_table + index * args.table_stride;
  }

  __device__ static int within(int value, int limit) { return min(max(value, 0), limit); }
};

// The keys [first, last) that a query at `position` sees.
struct Visible {
  int first;
  int last;

  __device__ Visible(const PagedAttentionArgs& args, int position, int num_keys) {
    first = args.window > 0 ? max(position - args.window + 1, 0) : 0;
    last = args.window_right > 0 ? min(position + args.window_right, num_keys) : num_keys;
  }
};

// What a row has gathered so far: sum of exp(score - top) times the values, and its parts.
template <class Shape>
struct Gathered {
  float top = -INFINITY;
  float total = 0.0f;
  float sum[Shape::kColumns] = {};
};

// Where a key or value of the tile's KV head lies; -1 when there is no such block.
__device__ inline int64_t place_of_key(const PagedAttentionArgs& args, const Sequence& sequence,
                                       int key) {
  const int64_t block = sequence.blocks[key / args.block_size];
  if (block < 0 || block >= args.num_blocks) return -1;
  return block * args.kv_block_stride + key % args.block_size * args.kv_token_stride;
}

// Keys [first, first + kKeys) of a plane as float32; zeros from `last` on and where no block is.
template <class Shape, class T>
__device__ inline void load_keys(const PagedAttentionArgs& args, const Sequence& sequence,
                                 const T* plane, int first, int last, float* tile) {
  for (int j = thread_index() / kRowLanes; j < Shape::kKeys; j += Shape::kRows) {
    const int64_t place = first + j < last ? place_of_key(args, sequence, first + j) : -1;
    for (int c = thread_index() % kRowLanes; c < args.head_dim; c += kRowLanes) {
      tile[j * (args.head_dim + 1) + c] = place < 0 ? 0.0f : to_float(plane[place + c]);
    }
  }
}

__device__ inline float score_of(const PagedAttentionArgs& args, const float* q, const float* k) {
  float dot = 0.0f;
  for (int c = 0; c < args.head_dim; ++c) dot += q[c] * k[c];
  const float score = dot * args.scale;
  return args.soft_cap > 0.0f ? args.soft_cap * tanhf(score / args.soft_cap) : score;
}

// Adds the keys of a tile, whose scores this row's lanes have, to what was gathered.
template <class Shape>
__device__ inline void add_scores(const float (&scores)[Shape::kKeysOfLane], float* weights,
                                  Gathered<Shape>& row) {
  float top = row.top;
#pragma unroll
  for (int i = 0; i < Shape::kKeysOfLane; ++i) top = fmaxf(top, scores[i]);
  top = reduce_group<kRowLanes>(top, Max{});
  // Nothing seen yet: any finite number serves, and exp(-inf - 0) is 0.
  const float base = top == -INFINITY ? 0.0f : top;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < Shape::kKeysOfLane; ++i) {
    const float weight = expf(scores[i] - base);
    weights[thread_index() % kRowLanes + i * kRowLanes] = weight;
    total += weight;
  }
  const float kept = expf(row.top - base);
  row.total = row.total * kept + reduce_group<kRowLanes>(total, Sum{});
  row.top = top;
#pragma unroll
  for (int i = 0; i < Shape::kColumns; ++i) row.sum[i] *= kept;
}

template <class Shape>
__device__ inline void add_values(int head_dim, const float* weights, const float* values,
                                  Gathered<Shape>& row) {
  for (int j = 0; j < Shape::kKeys; ++j) {
    const float weight = weights[j];
    const float* const value = values + j * (head_dim + 1) + thread_index() % kRowLanes;
#pragma unroll
    for (int i = 0; i < Shape::kColumns; ++i) {
      if (i * kRowLanes + thread_index() % kRowLanes < head_dim) {
        row.sum[i] += weight * value[i * kRowLanes];
      }
    }
  }
}

}  // namespace rtp_llm::cuda
