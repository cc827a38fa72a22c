// SPDX-License-Identifier: Apache-2.0
// A tile of query rows against a part of the keys in float32, on any GPU: 16 lanes for each row.
#pragma once

#include "rtp_llm/kernels/cuda/attention/paged_attention_tile.h"
#include "rtp_llm/kernels/cuda/block_memory.h"

namespace rtp_llm::cuda {

constexpr int kRowLanes = 16;

// Sizes of tiles for heads of up to kMaxDim elements, so that they fit into the shared memory of
// every device.
template <int kMaxDim_, int kRows_, int kKeys_>
struct VectorShape {
  static constexpr int kMaxDim = kMaxDim_;
  static constexpr int kRows = kRows_;  // query rows of a tile
  static constexpr int kKeys = kKeys_;  // keys at a time
  static constexpr int kThreads = kRows * kRowLanes;
  static constexpr int kColumns = kMaxDim / kRowLanes;  // of the result, for each lane
  static constexpr int kKeysOfLane = kKeys / kRowLanes;

  // Rows are one float longer than a head, so that lanes meet different banks.
  static int64_t shared_bytes(int head_dim) {
    return (int64_t{kRows + kKeys} * (head_dim + 1) + kRows * kKeys) * int64_t{sizeof(float)};
  }

  __device__ static int lane() { return thread_index() % kRowLanes; }
  __device__ static int row_of_thread() { return thread_index() / kRowLanes; }
  __device__ static bool leads_row() { return lane() == 0; }
  // The column of a lane's sum number i.
  __device__ static int column_of(int i) { return lane() + i * kRowLanes; }

  template <class F>
  __device__ static float reduce_row(float value, F combine) {
    return reduce_group<kRowLanes>(value, combine);
  }

  template <class T>
  __device__ static void attend(const PagedAttentionArgs& args, const Sequence& sequence,
                                const QueryRow& query, KeyPart part, Gathered<VectorShape>& row);
};

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

__device__ inline float dot(const float* q, const float* k, int size) {
  float sum = 0.0f;
  for (int c = 0; c < size; ++c) sum += q[c] * k[c];
  return sum;
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

template <int kMaxDim_, int kRows_, int kKeys_>
template <class T>
__device__ inline void VectorShape<kMaxDim_, kRows_, kKeys_>::attend(const PagedAttentionArgs& args,
                                                                     const Sequence& sequence,
                                                                     const QueryRow& query,
                                                                     KeyPart part,
                                                                     Gathered<VectorShape>& row) {
  const int width = args.head_dim + 1;
  float* const q = block_memory() + row_of_thread() * width;
  float* const keys = block_memory() + kRows * width;
  float* const weights = keys + kKeys * width + row_of_thread() * kKeys;
  const int64_t kv_head = int64_t{blockIdx.y} * args.kv_head_stride;
  const RowScores row_scores(args, sequence, query, part);
  const T* const from = static_cast<const T*>(args.q) +
                        (sequence.first_token + query.token) * args.q_token_stride +
                        query.head * args.q_head_stride;
  for (int c = lane(); c < args.head_dim; c += kRowLanes) {
    q[c] = query.present ? to_float(from[c]) : 0.0f;
  }
  for (int first = part.first; first < part.last; first += kKeys) {
    __syncthreads();  // the last tile of values has been used
    load_keys<VectorShape>(args, sequence, static_cast<const T*>(args.k) + kv_head, first,
                           part.last, keys);
    __syncthreads();
    float scores[kKeysOfLane];
#pragma unroll
    for (int i = 0; i < kKeysOfLane; ++i) {
      const int key = first + lane() + i * kRowLanes;
      const float* const k = keys + (key - first) * width;
      scores[i] = row_scores.sees(key) ? row_scores.of(key, dot(q, k, args.head_dim)) : -INFINITY;
    }
    __syncthreads();
    load_keys<VectorShape>(args, sequence, static_cast<const T*>(args.v) + kv_head, first,
                           part.last, keys);
    soften(scores, row);
#pragma unroll
    for (int i = 0; i < kKeysOfLane; ++i) weights[lane() + i * kRowLanes] = scores[i];
    __syncthreads();
    add_values<VectorShape>(args.head_dim, weights, keys, row);
  }
}

}  // namespace rtp_llm::cuda
