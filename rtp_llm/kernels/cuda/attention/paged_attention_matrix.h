// SPDX-License-Identifier: Apache-2.0
// A tile of query rows against a part of the keys by the matrix cores of AMD's GPUs: 16 rows for
// each wave, and the four lanes matrix_row() for each row.
//
// Keys are the left operand of the first product and queries the right one, so that a lane gets the
// scores of its own row. As weights they are the right operand of the second one, whose left
// operand are the values with keys in the order in which the first product left them: nothing moves
// between lanes, and nothing through shared memory but keys and values.
#pragma once

#include "rtp_llm/kernels/cuda/attention/paged_attention_tile.h"
#include "rtp_llm/kernels/cuda/block_memory.h"
#include "rtp_llm/kernels/cuda/matrix_core.h"

namespace rtp_llm::cuda {

// Sizes of tiles for heads of up to kMaxDim elements: kKeys at a time, kWaves of 16 rows.
template <int kMaxDim_, int kKeys_, int kWaves_>
struct MatrixShape {
  static constexpr int kMaxDim = kMaxDim_;
  static constexpr int kWaves = kWaves_;
  static constexpr int kRows = kWaves * kMatrixSide;  // query rows of a tile
  static constexpr int kKeys = kKeys_;                // keys at a time
  static constexpr int kThreads = kWaves * kWave;
  static constexpr int kColumns = kMaxDim / 4;  // of the result, for each lane
  static constexpr int kKeysOfLane = kKeys / 4;

  // Rows in shared memory are longer than what they hold, so that lanes meet different banks.
  static constexpr int kKeyPitch = kMaxDim + 8;
  static constexpr int kValuePitch = kKeys + 4;

  static int64_t shared_bytes(int) { return (kKeys * kKeyPitch + kMaxDim * kValuePitch) * 2; }

  __device__ static int row_of_thread() {
    return thread_index() / kWave * kMatrixSide + matrix_row();
  }
  __device__ static bool leads_row() { return matrix_quarter() == 0; }
  // The column of a lane's sum number i.
  __device__ static int column_of(int i) {
    return i / 4 * kMatrixSide + 4 * matrix_quarter() + i % 4;
  }

  template <class F>
  __device__ static float reduce_row(float value, F combine) {
    return reduce_quarters(value, combine);
  }

  template <class T>
  __device__ static void attend(const PagedAttentionArgs& args, const Sequence& sequence,
                                const QueryRow& query, KeyPart part, Gathered<MatrixShape>& row);
};

// Keys and values of a step in shared memory: values transposed.
template <class Shape, class T>
struct MatrixTiles {
  static constexpr int kVectors = Shape::kMaxDim / kMatrixPack;  // of a head

  using Vector = Pack<T, kMatrixPack>;

  T* keys;    // [key][kKeyPitch]
  T* values;  // [channel][kValuePitch]

  __device__ MatrixTiles()
      : keys(reinterpret_cast<T*>(block_memory())),
        values(keys + Shape::kKeys * Shape::kKeyPitch) {}

  // Eight channels of a key; zeros past the head, and where there is no key.
  __device__ static Pack<T, kMatrixPack> load_channels(const PagedAttentionArgs& args,
                                                       const Sequence& sequence, const T* plane,
                                                       int key, int last, int channel) {
    const bool inside = key < last && channel < args.head_dim;
    const int64_t place = inside ? place_of_key(args, sequence, key) : -1;
    return place < 0 ? Pack<T, kMatrixPack>{} : load<kMatrixPack>(plane + place + channel);
  }

  __device__ void load_keys(const PagedAttentionArgs& args, const Sequence& sequence,
                            const T* plane, int first, int last) const {
    for (int i = thread_index(); i < Shape::kKeys * kVectors; i += Shape::kThreads) {
      const int key = i / kVectors, channel = i % kVectors * kMatrixPack;
      store(keys + key * Shape::kKeyPitch + channel,
            load_channels(args, sequence, plane, first + key, last, channel));
    }
  }

  // Neighbouring threads take neighbouring keys, which lie next to each other in shared memory.
  __device__ void load_values(const PagedAttentionArgs& args, const Sequence& sequence,
                              const T* plane, int first, int last) const {
    for (int i = thread_index(); i < Shape::kKeys * kVectors; i += Shape::kThreads) {
      const int key = i % Shape::kKeys, channel = i / Shape::kKeys * kMatrixPack;
      const auto pack = load_channels(args, sequence, plane, first + key, last, channel);
#pragma unroll
      for (int c = 0; c < kMatrixPack; ++c) {
        values[(channel + c) * Shape::kValuePitch + key] = pack.element[c];
      }
    }
  }

  // The product of the wave's queries with the 16 keys from `key` on.
  __device__ MatrixSums multiply_keys(int key,
                                      const Pack<T, kMatrixPack> (&queries)[kVectors / 4]) const {
    const T* const from =
        keys + (key + matrix_row()) * Shape::kKeyPitch + kMatrixPack * matrix_quarter();
    MatrixSums sums = {};
#pragma unroll
    for (int i = 0; i < kVectors / 4; ++i) {
      sums = multiply_add(sums, load<kMatrixPack>(from + i * kMatrixDepth), queries[i]);
    }
    return sums;
  }

  // Adds the weights of the 32 keys from `key` on times 16 channels of their values. A lane has
  // weights of four keys of the first half and of four of the second.
  __device__ void add_values(float* sums, int channel, int key,
                             const Pack<T, kMatrixPack>& weights) const {
    const T* const from =
        values + (channel + matrix_row()) * Shape::kValuePitch + key + 4 * matrix_quarter();
    const Pack<T, 4> halves[2] = {load<4>(from), load<4>(from + kMatrixSide)};
    MatrixSums wide = {sums[0], sums[1], sums[2], sums[3]};
    wide = multiply_add(wide, __builtin_bit_cast(Vector, halves), weights);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = wide[i];
  }
};

// The lane's channels of its query row, of each step of a product.
template <class T, int kSteps>
__device__ inline void load_queries(const PagedAttentionArgs& args, const Sequence& sequence,
                                    const QueryRow& query, Pack<T, kMatrixPack> (&to)[kSteps]) {
  const T* const from = static_cast<const T*>(args.q) +
                        (sequence.first_token + query.token) * args.q_token_stride +
                        query.head * args.q_head_stride;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int channel = i * kMatrixDepth + kMatrixPack * matrix_quarter();
    const bool inside = query.present && channel < args.head_dim;
    to[i] = inside ? load<kMatrixPack>(from + channel) : Pack<T, kMatrixPack>{};
  }
}

template <int kMaxDim_, int kKeys_, int kWaves_>
template <class T>
__device__ inline void MatrixShape<kMaxDim_, kKeys_, kWaves_>::attend(
    const PagedAttentionArgs& args, const Sequence& sequence, const QueryRow& query, KeyPart part,
    Gathered<MatrixShape>& row) {
  const MatrixTiles<MatrixShape, T> tiles;
  const RowScores row_scores(args, sequence, query, part);
  const int64_t kv_head = int64_t{blockIdx.y} * args.kv_head_stride;
  const T* const k = static_cast<const T*>(args.k) + kv_head;
  const T* const v = static_cast<const T*>(args.v) + kv_head;
  Pack<T, kMatrixPack> queries[kMaxDim / kMatrixDepth];
  load_queries(args, sequence, query, queries);
  for (int first = part.first; first < part.last; first += kKeys) {
    __syncthreads();  // the tiles of the last step have been used
    tiles.load_keys(args, sequence, k, first, part.last);
    tiles.load_values(args, sequence, v, first, part.last);
    __syncthreads();
    float scores[kKeysOfLane];
#pragma unroll
    for (int i = 0; i < kKeys / kMatrixSide; ++i) {
      const MatrixSums dots = tiles.multiply_keys(i * kMatrixSide, queries);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = first + i * kMatrixSide + 4 * matrix_quarter() + j;
        scores[4 * i + j] = row_scores.sees(key) ? row_scores.of(key, dots[j]) : -INFINITY;
      }
    }
    soften(scores, row);
#pragma unroll
    for (int i = 0; i < kKeys / kMatrixDepth; ++i) {
      float of_step[kMatrixPack];
#pragma unroll
      for (int j = 0; j < kMatrixPack; ++j) of_step[j] = scores[kMatrixPack * i + j];
      const auto weights = narrow<T>(of_step);
#pragma unroll
      for (int c = 0; c < kMaxDim / kMatrixSide; ++c) {
        tiles.add_values(row.sum + 4 * c, c * kMatrixSide, i * kMatrixDepth, weights);
      }
    }
  }
}

}  // namespace rtp_llm::cuda
