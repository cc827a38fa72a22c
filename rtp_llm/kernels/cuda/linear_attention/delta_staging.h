// SPDX-License-Identifier: Apache-2.0
// What the threads of a block of the gated delta rule put into shared memory for each other. Every
// thread asks for all that it brings before it stores any of it.
#pragma once

#include "rtp_llm/kernels/cuda/linear_attention/delta_chunk.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

constexpr int kStaged = 8;       // new tokens
constexpr int kRingStaged = 16;  // tokens of the ring
constexpr int kPack = 8;         // elements of a vector that a lane brings at once
static_assert(2 * kStaged <= kGroups && kRingStaged <= kGroups, "a group brings one vector");

struct Shared {
  float* ring_keys;     // [ring tokens][Dk]
  float* queries;       // [new tokens][Dk]
  float* keys;          // [new tokens][Dk]
  float* ring_u;        // [ring tokens][tile rows]
  float* values;        // [new tokens][tile rows]
  float* remains;       // [kRingStaged]: what gates leave of a token at the chunk's start
  float* decays;        // [kStaged]
  float* betas;         // [kStaged]
  float* replay_decay;  // what they leave of S

  __device__ Shared(float* memory, const GatedDeltaRuleArgs& args, int tile_rows) {
    const int ring = ring_tokens(args), staged = staged_tokens(args);
    ring_keys = memory;
    queries = ring_keys + ring * args.key_size;
    keys = queries + staged * args.key_size;
    ring_u = keys + staged * args.key_size;
    values = ring_u + ring * tile_rows;
    remains = values + staged * tile_rows;
    decays = remains + kRingStaged;
    betas = decays + kStaged;
    replay_decay = betas + kStaged;
  }

  __host__ __device__ static int ring_tokens(const GatedDeltaRuleArgs& args) {
    return args.ring / 2 < kRingStaged ? args.ring / 2 : kRingStaged;
  }
  __host__ __device__ static int staged_tokens(const GatedDeltaRuleArgs& args) {
    const int64_t most = args.sequences.max_seqlen_q;
    return most < kStaged ? static_cast<int>(most) : kStaged;
  }
  static int64_t numbers(const GatedDeltaRuleArgs& args, int tile_rows) {
    const int64_t ring = ring_tokens(args), staged = staged_tokens(args);
    return (ring + 2 * staged) * args.key_size + (ring + staged) * tile_rows + kRingStaged +
           2 * kStaged + 4;
  }
};

template <bool aligned, class T>
__device__ inline Pack<T, kPack> load_pack(const T* from) {
  constexpr int kAccess = 16 / sizeof(T);
  Pack<T, kPack> pack;
  if constexpr (aligned) {
#pragma unroll
    for (int i = 0; i < kPack; i += kAccess) {
      const Pack<T, kAccess> part = load<kAccess>(from + i);
#pragma unroll
      for (int k = 0; k < kAccess; ++k) pack.element[i + k] = part.element[k];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.element[i] = from[i];
  }
  return pack;
}

// A group's lanes bring a vector, each kPacks parts of it. Lanes without one have size 0. kSize:
// the only other size, or 0.
template <class T, int kPacks, int kSize>
struct Vector {
  Pack<T, kPack> packs[kPacks];
  int size;

  __device__ static int place(int i) { return (i * kLanes + lane_of_row()) * kPack; }

  template <bool aligned>
  __device__ void ask(const T* from, int its_size) {
    size = its_size;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      packs[i] = Pack<T, kPack>{};
      if (has(i)) packs[i] = load_pack<aligned>(from + place(i));
    }
  }

  __device__ bool has(int i) const { return kSize > 0 ? size > 0 : place(i) < size; }

  template <bool aligned>
  __device__ void copy(T* to) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (!has(i)) continue;
      if constexpr (aligned) {
        store(to + place(i), packs[i]);
      } else {
#pragma unroll
        for (int k = 0; k < kPack; ++k) to[place(i) + k] = packs[i].element[k];
      }
    }
  }

  // With length `scale`. All lanes of the warp call it.
  __device__ void stage(float scale, float* to) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float value = to_float(packs[i].element[k]);
        sum += value * value;
      }
    }
    const float factor = scale / sqrtf(reduce_group<kLanes>(sum, Sum{}) + 1e-6f);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (!has(i)) continue;
#pragma unroll
      for (int k = 0; k < kPack; k += 4) {
        Pack<float, 4> four;
#pragma unroll
        for (int j = 0; j < 4; ++j) four.element[j] = factor * to_float(packs[i].element[k + j]);
        store(to + place(i) + k, four);
      }
    }
  }
};

struct Gate {
  float log_decay, beta;
};

// The gate of value head `head` and the token at `row`.
template <class T>
__device__ inline Gate gate_of(const GatedDeltaRuleArgs& args, int head, int64_t row) {
  const T* const ba = static_cast<const T*>(args.ba) + row * args.ba_stride;
  const float x = to_float(ba[args.heads + head]) + args.dt_bias[head];
  const float b = to_float(ba[head]);
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return {-expf(args.a_log[head]) * softplus, 1.0f / (1.0f + expf(-b))};
}

// Gates of up to kStaged new tokens from `first` on.
template <class T>
__device__ inline void stage_gates(const GatedDeltaRuleArgs& args, const TilePlace& place,
                                   const Chunk& chunk, int first, const Shared& shared) {
  const int token = thread_index();
  if (token >= min(kStaged, chunk.count - first)) return;
  const Gate gate = gate_of<T>(args, place.head, chunk.first + first + token);
  shared.decays[token] = expf(gate.log_decay);
  shared.betas[token] = gate.beta;
  if (!chunk.keeps() || !place.leads_head) return;
  const int64_t slot = chunk.slot(args, first + token);
  args.ring_g[chunk.write * args.ring_g_stride + slot * args.heads + place.head] = gate.log_decay;
}

// Up to kStaged new tokens from `first` on, and what goes into the ring of them.
template <class T, int kPacks, int kTileRows, int kSize>
__device__ inline void stage_tokens(const GatedDeltaRuleArgs& args, const TilePlace& place,
                                    const Chunk& chunk, int first, const Shared& shared) {
  const int count = min(kStaged, chunk.count - first);
  const T* const qkv = static_cast<const T*>(args.qkv) + (chunk.first + first) * args.qkv_stride;
  const int size = kSize > 0 ? kSize : args.key_size, keys = args.key_heads * size;
  const bool has_vector = group_of_row() < 2 * count, is_key = group_of_row() % 2 == 1;
  const int token = has_vector ? group_of_row() / 2 : 0;
  Vector<T, kPacks, kSize> vector;
  vector.template ask<(kSize > 0)>(
      qkv + token * args.qkv_stride + place.key_head * size + (is_key ? keys : 0),
      has_vector ? size : 0);
  stage_gates<T>(args, place, chunk, first, shared);
  const T* const values = qkv + 2 * keys + place.head * args.value_size + place.row;
  for (int i = thread_index(); i < count * kTileRows; i += kThreads) {
    const int row = i % kTileRows;
    const bool has_row = kSize > 0 || row < place.rows;
    shared.values[i] = has_row ? to_float(values[i / kTileRows * args.qkv_stride + row]) : 0.0f;
  }
  vector.stage(is_key ? 1.0f : 1.0f / sqrtf(static_cast<float>(size)),
               (is_key ? shared.keys : shared.queries) + token * size);
  if (!has_vector || !is_key || !chunk.keeps() || !place.leads_key_head) return;
  const int64_t slot = chunk.slot(args, first + token);
  vector.template copy<false>(static_cast<T*>(args.ring_k) + chunk.write * args.ring_k_stride +
                              (slot * args.key_heads + place.key_head) * size);
}

// Tokens [first, first + count) of the ring, and what the gates of later ones leave of each.
template <class T, int kPacks, int kTileRows, int kSize>
__device__ inline void stage_ring(const GatedDeltaRuleArgs& args, const TilePlace& place,
                                  const Ring& ring, int64_t read, int first, int count,
                                  const Shared& shared) {
  const bool has_key = group_of_row() < count;
  const int token = has_key ? group_of_row() : 0;
  const int size = kSize > 0 ? kSize : args.key_size;
  const T* const keys = static_cast<const T*>(args.ring_k) + read * args.ring_k_stride;
  Vector<T, kPacks, kSize> key;
  key.template ask<true>(
      keys + (ring.slot(args, first + token) * args.key_heads + place.key_head) * size,
      has_key ? size : 0);
  if (thread_index() < count) {
    const float* const gates = args.ring_g + read * args.ring_g_stride + place.head;
    float later = 0.0f;
    for (int i = first + thread_index() + 1; i < ring.count; ++i) {
      later += gates[ring.slot(args, i) * args.heads];
    }
    shared.remains[thread_index()] = expf(later);
    if (first + thread_index() == 0) {
      *shared.replay_decay = expf(later + gates[ring.slot(args, 0) * args.heads]);
    }
  }
  const float* const updates =
      args.ring_u + read * args.ring_u_stride + place.head * args.value_size + place.row;
  for (int i = 4 * thread_index(); i < count * kTileRows; i += 4 * kThreads) {
    const int row = i % kTileRows;
    const int slot = ring.slot(args, first + i / kTileRows);
    Pack<float, 4> four = {};
    if (kSize > 0 || row < place.rows) {
      four = load<4>(updates + slot * args.heads * args.value_size + row);
    }
    store(shared.ring_u + i, four);
  }
  key.stage(1.0f, shared.ring_keys + token * size);
}

}  // namespace rtp_llm::cuda
