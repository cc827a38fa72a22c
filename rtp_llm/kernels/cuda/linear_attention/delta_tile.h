// SPDX-License-Identifier: Apache-2.0
// A block of threads' part of the gated delta rule: some rows of S of one value head.
#pragma once

#include "rtp_llm/kernels/cuda/linear_attention/delta_chunk.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_staging.h"

namespace rtp_llm::cuda {

// A thread's share of the tile: of kRows rows, kGroups apart, the elements that its lane has of
// kUnits stretches of the row. kSize: the Dk that it is compiled for, and then all rows are there;
// 0: any.
template <class State, int kUnits, int kRows, int kSize>
struct StateTile {
  static constexpr int kWidth = 16 / sizeof(State);
  static constexpr int kColumns = kUnits * kWidth;
  static constexpr int kTileRows = kGroups * kRows;

  float s[kRows][kColumns];
  const GatedDeltaRuleArgs& args;
  int64_t head_at;  // in a block of the state
  int rows;

  __device__ StateTile(const GatedDeltaRuleArgs& args, const TilePlace& place)
      : s{},
        args(args),
        head_at((int64_t{place.head} * args.value_size + place.row) * size()),
        rows(place.rows) {}

  __device__ int size() const { return kSize > 0 ? kSize : args.key_size; }
  __device__ bool has(int r, int unit) const {
    return kSize > 0 || (row_of(r) < rows && column_of(unit) < args.key_size);
  }
  __device__ static int row_of(int r) { return r * kGroups + group_of_row(); }
  __device__ static int column_of(int unit) { return (unit * kLanes + lane_of_row()) * kWidth; }

  __device__ void read(int64_t block) {
    const State* const from =
        static_cast<const State*>(args.state) + block * args.state_stride + head_at;
    Pack<State, kWidth> packs[kRows][kUnits];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        packs[r][unit] = Pack<State, kWidth>{};
        if (!has(r, unit)) continue;
        packs[r][unit] = load<kWidth>(from + row_of(r) * size() + column_of(unit));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        s[r][i] = to_float(packs[r][i / kWidth].element[i % kWidth]);
      }
    }
  }

  __device__ void write(int64_t block) const {
    State* const to = static_cast<State*>(args.state) + block * args.state_stride + head_at;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        if (!has(r, unit)) continue;
        float values[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] = s[r][unit * kWidth + i];
        store(to + row_of(r) * size() + column_of(unit), narrow<State>(values));
      }
    }
  }

  // This lane's part of a vector of Dk numbers.
  __device__ void take(const float* vector, float (&part)[kColumns]) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int at = 0; at < kWidth; at += 4) {
        Pack<float, 4> four = {};
        if (kSize > 0 || column_of(unit) < args.key_size) {
          four = load<4>(vector + column_of(unit) + at);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) part[unit * kWidth + at + i] = four.element[i];
      }
    }
  }

  __device__ void scale(float factor) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) s[r][i] *= factor;
    }
  }

  // s = s + u key^T
  __device__ void add(const float (&key)[kColumns], const float (&u)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) s[r][i] += u[r] * key[i];
    }
  }

  // From what the state was when it was written to what it is at the chunk's start. Also a barrier.
  template <class T>
  __device__ void replay(const TilePlace& place, const Ring& ring, int64_t block,
                         const Shared& shared) {
    int first = 0;
    do {
      const int count = min(kRingStaged, ring.count - first);
      if (first > 0) __syncthreads();  // what was staged before is read no more
      stage_ring<T, kColumns / kPack, kTileRows, kSize>(args, place, ring, block, first, count,
                                                        shared);
      __syncthreads();
      if (first == 0 && count > 0) scale(*shared.replay_decay);
      for (int i = 0; i < count; ++i) {
        float key[kColumns], u[kRows];
        take(shared.ring_keys + i * size(), key);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          u[r] = shared.remains[i] * shared.ring_u[i * kTileRows + row_of(r)];
        }
        add(key, u);
      }
      first += count;
    } while (first < ring.count);
  }

  // The staged tokens from `first` on: their results and what goes into the ring.
  template <class T>
  __device__ void advance(const TilePlace& place, const Chunk& chunk, int first,
                          const Shared& shared) {
    const int count = min(kStaged, chunk.count - first);
    for (int token = 0; token < count; ++token) {
      float key[kColumns], query[kColumns];
      take(shared.keys + token * size(), key);
      take(shared.queries + token * size(), query);
      float same = 0.0f;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) same += key[i] * query[i];
      same = reduce_group<kLanes>(same, Sum{});
      const float decay = shared.decays[token], beta = shared.betas[token];
      float u[kRows], result[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float of_key = 0.0f, of_query = 0.0f;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          of_key += s[r][i] * key[i];
          of_query += s[r][i] * query[i];
        }
        of_key = reduce_group<kLanes>(of_key, Sum{});
        of_query = reduce_group<kLanes>(of_query, Sum{});
        u[r] = beta * (shared.values[token * kTileRows + row_of(r)] - decay * of_key);
        result[r] = decay * of_query + u[r] * same;
      }
      put<T>(place, chunk, first + token, u, result);
      const bool is_last = first + token + 1 == chunk.count;
      if (is_last && chunk.is_short) continue;
      scale(decay);
      add(key, u);
    }
  }

  // Lane r of a group writes for the group's r-th row.
  template <class T>
  __device__ void put(const TilePlace& place, const Chunk& chunk, int token,
                      const float (&u)[kRows], const float (&result)[kRows]) const {
    float mine = 0.0f, my_u = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane_of_row() != r) continue;
      mine = result[r];
      my_u = u[r];
    }
    const int row = row_of(lane_of_row());
    if (lane_of_row() >= kRows || row >= rows) return;
    const int at = place.head * args.value_size + place.row + row;
    const int width = args.heads * args.value_size;
    static_cast<T*>(args.out)[(chunk.first + token) * int64_t{width} + at] = from_float<T>(mine);
    if (!chunk.keeps()) return;
    args.ring_u[chunk.write * args.ring_u_stride + chunk.slot(args, token) * int64_t{width} + at] =
        my_u;
  }
};

}  // namespace rtp_llm::cuda
