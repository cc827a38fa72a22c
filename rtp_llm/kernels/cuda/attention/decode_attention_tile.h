// SPDX-License-Identifier: Apache-2.0
// Sixteen keys and their values in the registers of a warp, and an online softmax over such tiles.
//
// The keys are the rows of the tensor cores' tiles and the query heads that share them are the
// columns (scores = K Q^T, result^T = V^T P^T), so that up to eight heads fill what one would. The
// order of channels within a product is free as long as both sides agree: lanes take 16 bytes of a
// row at once, straight from memory into the registers that the products use. Values need pairs
// of keys in a register instead of pairs of channels, which a byte permutation makes.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/common/attention/decode_attention.h"
#include "rtp_llm/kernels/cuda/tensor_core.h"

namespace rtp_llm::cuda {

constexpr int kTileKeys = 16;
constexpr int kHeadsOfTile = 8;
constexpr unsigned int kAllLanes = 0xffffffffU;

__device__ inline int lane_row() { return thread_index() % kGroup / 4; }     // g of multiply_add
__device__ inline int lane_column() { return thread_index() % kGroup % 4; }  // t

// 2^x; 0 for minus infinity.
__device__ inline float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Bypasses the first-level cache, as the data is read once. Volatile, so that the compiler keeps it
// before the wait for the preceding kernel.
__device__ inline void load_once(uint32_t (&to)[4], const void* from) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
}
__device__ inline void load_once(uint32_t (&to)[2], const void* from) {
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "l"(from));
}

// The keys that a block of threads attends to: from `first` to before `end`, in tiles from
// begin_tile to before end_tile. All are in the cache since earlier steps but the new token's, the
// last one: for blocks that do not have it, `end` is out of reach.
struct KeyRange {
  int first, end;
  int begin_tile, end_tile;

  __device__ bool has_new(int tile) const { return (tile + 1) * kTileKeys >= end; }
  __device__ int new_row() const { return (end - 1) % kTileKeys; }
};

// The cache's blocks that hold a tile's keys: its first eight and its last eight; -1 = none.
struct TileBlocks {
  int low, high;
};

__device__ inline TileBlocks find_blocks(const DecodeAttentionArgs& args, const int32_t* table,
                                         int tile) {
  const auto block_of = [&](int key) {
    const int index = key >> args.block_bits;
    if (index >= args.table_width) return -1;
    const int block = table[index];
    return block < args.num_blocks ? block : -1;
  };
  TileBlocks blocks;
  blocks.low = block_of(tile * kTileKeys);
  blocks.high = args.block_bits > 3 ? blocks.low : block_of(tile * kTileKeys + 8);
  return blocks;
}

// Where a tile's halves begin in the cache, in elements, and which of its keys count: bit i for key
// i. What does not count is read all the same, from some place that exists.
struct TilePlace {
  int64_t low, high;
  unsigned int seen;

  __device__ TilePlace(const DecodeAttentionArgs& args, const KeyRange& range, int tile,
                       TileBlocks blocks) {
    const int key = tile * kTileKeys;
    const int inside = (1 << args.block_bits) - 1;
    low = max(blocks.low, 0) * args.kv_block_stride + (key & inside) * args.kv_token_stride;
    high = max(blocks.high, 0) * args.kv_block_stride + ((key + 8) & inside) * args.kv_token_stride;
    seen = (blocks.low >= 0 ? 0xffU : 0U) | (blocks.high >= 0 ? 0xff00U : 0U);
    if (key < range.first) seen &= 0xffffU << (range.first - key);
    if (key + kTileKeys > range.end) seen &= 0xffffU >> (key + kTileKeys - range.end);
  }
};

// T: queries and results; C: the cache's elements (T, or uint8_t for e4m3fn); D channels of a head;
// N tiles of eight query heads.
template <class T, class C, int D, int N>
struct Tile {
  using Math = std::conditional_t<sizeof(C) == 1, Float16, T>;  // of the products
  static constexpr int kKeyVector = 16 / sizeof(C);
  static constexpr int kKeyLoads = D / (4 * kKeyVector);
  static constexpr int kValueVector = kKeyVector < D / 8 ? kKeyVector : D / 8;
  static constexpr int kValueLoads = D / (8 * kValueVector);
  static constexpr int kValueWords = kValueVector * static_cast<int>(sizeof(C)) / 4;
  static constexpr int kPitch = D + 32;  // of queries in shared memory: lanes in distinct banks
  static constexpr int kSteps = D / 16;

  uint32_t low[kKeyLoads][4], high[kKeyLoads][4];  // keys g and g + 8
  uint32_t value[4][kValueLoads][kValueWords];     // keys 2t, 2t + 1, 2t + 8, 2t + 9
  unsigned int seen_rows, seen_values;             // as of TilePlace, of the keys and of the values

  __device__ void load_keys(const DecodeAttentionArgs& args, const C* head,
                            const TilePlace& place) {
    const C* const from = head + lane_row() * args.kv_token_stride + lane_column() * kKeyVector;
    seen_rows = place.seen;
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
      load_once(low[i], from + place.low + i * 4 * kKeyVector);
      load_once(high[i], from + place.high + i * 4 * kKeyVector);
    }
  }

  __device__ void load_values(const DecodeAttentionArgs& args, const C* head,
                              const TilePlace& place) {
    const C* const from =
        head + 2 * lane_column() * args.kv_token_stride + lane_row() * kValueVector;
    seen_values = place.seen;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const C* const key = from + (k < 2 ? place.low : place.high) + k % 2 * args.kv_token_stride;
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) load_once(value[k][i], key + i * 8 * kValueVector);
    }
  }

  // Values of keys that are not seen become zeros: what lies there may be no number.
  __device__ void hide_values() {
    if (seen_values == 0xffffU) return;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((seen_values >> (2 * lane_column() + k % 2 + k / 2 * 8) & 1U) != 0) continue;
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
#pragma unroll
        for (int word = 0; word < kValueWords; ++word) value[k][i][word] = 0;
      }
    }
  }

  // The tile's key `row` from where the block has prepared it: memory does not have it yet.
  __device__ void take_key(int row, const C* key) {
    const bool is_low = row == lane_row();
    const bool is_high = row == lane_row() + 8;
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(key + lane_column() * kKeyVector);
#pragma unroll
    for (int i = 0; i < 4 * kKeyLoads; ++i) {
      const uint32_t word = words[i / 4 * kKeyVector * static_cast<int>(sizeof(C)) + i % 4];
      low[i / 4][i % 4] = is_low ? word : low[i / 4][i % 4];
      high[i / 4][i % 4] = is_high ? word : high[i / 4][i % 4];
    }
  }

  __device__ void take_value(int row, const C* from) {
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(from + lane_row() * kValueVector);
    const int first = row - 2 * lane_column();  // 0, 1, 8 or 9 when it is this lane's
#pragma unroll
    for (int i = 0; i < kValueLoads * kValueWords; ++i) {
      const int load = i / kValueWords;
      const uint32_t word = words[load * 8 * kValueWords + i % kValueWords];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t& mine = value[k][load][i % kValueWords];
        mine = first == k % 2 + k / 2 * 8 ? word : mine;
      }
    }
  }

  // scores[n]: of keys g and g + 8 with queries 2t and 2t + 1 of the n-th eight.
  __device__ void score(const Math* queries, float (&scores)[N][4]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const Math* const from =
          queries + (n * kHeadsOfTile + lane_row()) * kPitch + lane_column() * kKeyVector;
      float sums[2][4] = {};  // two chains of products: each waits for its own last one only
#pragma unroll
      for (int i = 0; i < kSteps; i += 2) {
        // Steps i and i + 1 take eight channels of the lane.
        const int load = i * 4 / kKeyVector;
        const int inside = i * 4 % kKeyVector;
        const uint4 q = *reinterpret_cast<const uint4*>(from + load * 4 * kKeyVector + inside);
        if constexpr (sizeof(C) == 2) {
          multiply_add<Math>(sums[0], low[load][0], high[load][0], low[load][1], high[load][1], q.x,
                             q.y);
          multiply_add<Math>(sums[1], low[load][2], high[load][2], low[load][3], high[load][3], q.z,
                             q.w);
        } else {
          const int word = inside / 4;
          multiply_add_bytes(sums[0], low[load][word], high[load][word], q.x, q.y);
          multiply_add_bytes(sums[1], low[load][word + 1], high[load][word + 1], q.z, q.w);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = sums[0][i] + sums[1][i];
    }
  }

  // result[n][i]: two neighbouring channels, in rows g and g + 8, for queries 2t and 2t + 1. Those
  // of kValueVector / 2 steps after each other are a lane's kValueVector neighbours.
  __device__ void add_values(const float (&weights)[N][4], float (&result)[N][kSteps][4]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint32_t b0 = transpose_8x8(pack_pair<Math>(weights[n][0], weights[n][1]));
      const uint32_t b1 = transpose_8x8(pack_pair<Math>(weights[n][2], weights[n][3]));
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
#pragma unroll
        for (int word = 0; word < kValueWords; ++word) {
          const uint32_t v[4] = {value[0][i][word], value[1][i][word], value[2][i][word],
                                 value[3][i][word]};
          const int step = i * kValueVector / 2 + word * 2 / static_cast<int>(sizeof(C));
          if constexpr (sizeof(C) == 2) {
            multiply_add<Math>(result[n][step], __byte_perm(v[0], v[1], 0x5410),
                               __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x5410),
                               __byte_perm(v[2], v[3], 0x7632), b0, b1);
          } else {
            add_bytes(result[n][step], v, 0x5140, b0, b1);
            add_bytes(result[n][step + 1], v, 0x7362, b0, b1);
          }
        }
      }
    }
  }

 private:
  __device__ static void multiply_add_bytes(float (&sums)[4], uint32_t low_bytes,
                                            uint32_t high_bytes, uint32_t b0, uint32_t b1) {
    multiply_add<Math>(sums, widen_float8(low_bytes & 0xffffU), widen_float8(high_bytes & 0xffffU),
                       widen_float8(low_bytes >> 16), widen_float8(high_bytes >> 16), b0, b1);
  }

  // Two channels of four keys: `order` brings the pairs of keys of both side by side.
  __device__ static void add_bytes(float (&sums)[4], const uint32_t (&v)[4], uint32_t order,
                                   uint32_t b0, uint32_t b1) {
    const uint32_t first = __byte_perm(v[0], v[1], order);
    const uint32_t second = __byte_perm(v[2], v[3], order);
    multiply_add<Math>(sums, widen_float8(first & 0xffffU), widen_float8(first >> 16),
                       widen_float8(second & 0xffffU), widen_float8(second >> 16), b0, b1);
  }
};

// How scores become powers of two.
struct ScoreScale {
  float factor;  // log2(e) times the softmax scale; with a cap, that scale over the cap
  float cap;     // log2(e) times the cap; 0 = none

  template <int N>
  __device__ void apply(float (&scores)[N][4]) const {
    if (cap == 0.0f) {
#pragma unroll
      for (int i = 0; i < 4 * N; ++i) scores[i / 4][i % 4] *= factor;
    } else {
#pragma unroll
      for (int i = 0; i < 4 * N; ++i) scores[i / 4][i % 4] = bend(scores[i / 4][i % 4]);
    }
  }

 private:
  __device__ float bend(float score) const {
    const float small = power_of_two(-2.88539008f * fabsf(score * factor));  // e^(-2 |x|)
    return copysignf(cap * ((1.0f - small) / (1.0f + small)), score);
  }
};

// The online softmax of a warp: each lane's two query columns of N tiles.
template <int D, int N>
struct Softmax {
  float top[N][2], total[N][2];  // total: of this lane's keys only, until `gather`
  float result[N][D / 16][4];

  __device__ Softmax() {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      top[n][0] = top[n][1] = -INFINITY;
      total[n][0] = total[n][1] = 0.0f;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        result[n][i][0] = result[n][i][1] = result[n][i][2] = result[n][i][3] = 0.0f;
      }
    }
  }

  // Scores become weights of the new maximum; the result so far is brought to it.
  __device__ void weigh(float (&scores)[N][4], const ScoreScale& scale, unsigned int seen) {
    scale.apply(scores);
    if (seen != 0xffffU) {
      const bool low = (seen >> lane_row() & 1U) != 0;
      const bool high = (seen >> (lane_row() + 8) & 1U) != 0;
#pragma unroll
      for (int i = 0; i < 4 * N; ++i) {
        if (!(i % 4 < 2 ? low : high)) scores[i / 4][i % 4] = -INFINITY;
      }
    }
    float highest[N][2];
    bool is_higher = false;
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) {
      float& most = highest[i / 2][i % 2];
      most = fmaxf(scores[i / 2][i % 2], scores[i / 2][i % 2 + 2]);
#pragma unroll
      for (int mask = 4; mask < kGroup; mask *= 2) most = fmaxf(most, exchange(most, mask));
      is_higher = is_higher || most > top[i / 2][i % 2];
    }
    if (__any_sync(kAllLanes, is_higher)) raise(highest);
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) {
      const float base = base_of(top[i / 2][i % 2]);
      float& low = scores[i / 2][i % 2];
      float& high = scores[i / 2][i % 2 + 2];
      low = power_of_two(low - base);
      high = power_of_two(high - base);
      total[i / 2][i % 2] += low + high;
    }
  }

  __device__ void gather() {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
#pragma unroll
        for (int mask = 4; mask < kGroup; mask *= 2)
          total[n][column] += exchange(total[n][column], mask);
      }
    }
  }

 private:
  // A column that has seen nothing has no maximum: its weights stay zero.
  __device__ static float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

  __device__ void raise(const float (&highest)[N][2]) {
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) {
      float& old = top[i / 2][i % 2];
      const float raised = fmaxf(old, highest[i / 2][i % 2]);
      const float keep = power_of_two(old - base_of(raised));
      old = raised;
      total[i / 2][i % 2] *= keep;
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        result[i / 2][step][i % 2] *= keep;
        result[i / 2][step][i % 2 + 2] *= keep;
      }
    }
  }
};

}  // namespace rtp_llm::cuda
