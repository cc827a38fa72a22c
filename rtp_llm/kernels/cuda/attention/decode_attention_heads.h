// SPDX-License-Identifier: Apache-2.0
// The new token's heads before attention: norm, rotation, and the new key and value into the cache.
#pragma once

#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/cuda/attention/decode_attention_tile.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

// Two channels that rotate together, or just any two that do not rotate; D / 2 pairs in a head.
// Also holds their factors, which are available before the projection.
struct ChannelPair {
  int first, second;
  float cos, sin;
  float q_first, q_second, k_first, k_second;  // norm weights

  ChannelPair() = default;

  template <class T>
  __device__ ChannelPair(const DecodeAttentionArgs& args, int pair, int position, T)
      : cos(1.0f), sin(0.0f) {
    const int half = args.rotary_dim / 2;
    const auto unrotated = [&](int i) { return i < args.rotary_offset ? i : i + args.rotary_dim; };
    if (pair < half) {
      first = args.rotary_offset + (args.is_neox ? pair : 2 * pair);
      second = first + (args.is_neox ? half : 1);
      const float* const row = args.cos_sin + int64_t{position} * args.rotary_dim + pair;
      cos = row[0];
      sin = row[half];
    } else {
      first = unrotated(2 * (pair - half));
      second = unrotated(2 * (pair - half) + 1);
    }
    if (args.q_weight == nullptr) return;
    q_first = to_float(static_cast<const T*>(args.q_weight)[first]) + args.norm_offset;
    q_second = to_float(static_cast<const T*>(args.q_weight)[second]) + args.norm_offset;
    k_first = to_float(static_cast<const T*>(args.k_weight)[first]) + args.norm_offset;
    k_second = to_float(static_cast<const T*>(args.k_weight)[second]) + args.norm_offset;
  }
};

// One element as the cache stores it.
template <class T, class C>
__device__ inline C as_stored(T from, float divisor) {
  if constexpr (sizeof(C) == 1) {
    return float8_e4m3(__float_as_uint(to_float(from) / divisor), false);
  } else {
    return divisor == 1.0f ? from : from_float<T>(to_float(from) / divisor);
  }
}

// What the block of threads shares: queries as the products take them, and the new key and value as
// the cache has them from now on.
template <class T, class C, int D, int N>
struct NewHeads {
  using Math = typename Tile<T, C, D, N>::Math;
  static constexpr int kPitch = Tile<T, C, D, N>::kPitch;
  static constexpr int kPairs = D / 2 / kGroup;  // of a lane

  alignas(16) Math queries[N * kHeadsOfTile][kPitch];
  alignas(16) C key[D];
  alignas(16) C value[D];

  // Every warp takes heads in turn: the group's queries, then the key and the value for `slot`, -1:
  // without.
  __device__ void prepare(const DecodeAttentionArgs& args, const ChannelPair (&pairs)[kPairs],
                          int slot) {
    const int warp = thread_index() / kGroup;
    const int group = args.num_heads / args.num_kv_heads;
    const int kv_head = static_cast<int>(blockIdx.x);
    const T* const row = static_cast<const T*>(args.qkv) + blockIdx.y * args.qkv_stride;
    for (int head = warp; head < group + (slot < 0 ? 0 : 2); head += thread_count() / kGroup) {
      const bool is_query = head < group;
      int index = kv_head * group + head;
      if (!is_query) index = args.num_heads + (head - group) * args.num_kv_heads + kv_head;
      T first[kPairs];
      T second[kPairs];
      const T* const from = row + index * D;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        first[i] = from[pairs[i].first];
        second[i] = from[pairs[i].second];
      }
      if (head <= group) rotate(args, pairs, is_query, first, second);
      if (is_query) {
        share_query(head, pairs, first, second);
      } else {
        store(args, pairs, head == group, slot, first, second);
      }
    }
  }

  // Rows of no head are zeros; before `prepare`.
  __device__ void clear(const DecodeAttentionArgs& args) {
    const int group = args.num_heads / args.num_kv_heads;
    constexpr int kWords = D * static_cast<int>(sizeof(Math)) / 16;  // of 16 bytes
    for (int i = thread_index(); i < (N * kHeadsOfTile - group) * kWords; i += thread_count()) {
      reinterpret_cast<uint4*>(queries[group + i / kWords])[i % kWords] = uint4{};
    }
  }

 private:
  // Norm (rounded, as when a kernel of its own had written it), then rotation.
  __device__ static void rotate(const DecodeAttentionArgs& args, const ChannelPair (&pairs)[kPairs],
                                bool is_query, T (&first)[kPairs], T (&second)[kPairs]) {
    const bool has_norm = args.q_weight != nullptr;
    float inverse = 1.0f;
    if (has_norm) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float a = to_float(first[i]);
        const float b = to_float(second[i]);
        squares += a * a + b * b;
      }
      inverse = rsqrtf(reduce_group(squares, Sum()) * (1.0f / D) + args.eps);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float a = to_float(first[i]);
      float b = to_float(second[i]);
      if (has_norm) {
        const ChannelPair& pair = pairs[i];
        a = to_float(from_float<T>(a * (inverse * (is_query ? pair.q_first : pair.k_first))));
        b = to_float(from_float<T>(b * (inverse * (is_query ? pair.q_second : pair.k_second))));
      }
      first[i] = from_float<T>(a * pairs[i].cos - b * pairs[i].sin);
      second[i] = from_float<T>(b * pairs[i].cos + a * pairs[i].sin);
    }
  }

  // 16-bit floats of less range take what they can.
  __device__ static Math as_math(T element) {
    if constexpr (std::is_same_v<T, Math>) {
      return element;
    } else {
      return from_float<Math>(fminf(fmaxf(to_float(element), -65504.0f), 65504.0f));
    }
  }

  __device__ void share_query(int head, const ChannelPair (&pairs)[kPairs],
                              const T (&first)[kPairs], const T (&second)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      queries[head][pairs[i].first] = as_math(first[i]);
      queries[head][pairs[i].second] = as_math(second[i]);
    }
  }

  __device__ void store(const DecodeAttentionArgs& args, const ChannelPair (&pairs)[kPairs],
                        bool is_key, int slot, const T (&first)[kPairs],
                        const T (&second)[kPairs]) {
    const float* const scale = is_key ? args.k_scale : args.v_scale;
    const float divisor = scale == nullptr ? 1.0f : *scale;
    C* const to = static_cast<C*>(is_key ? args.k_cache : args.v_cache) +
                  (slot >> args.block_bits) * args.kv_block_stride +
                  (slot & ((1 << args.block_bits) - 1)) * args.kv_token_stride +
                  blockIdx.x * args.kv_head_stride;
    C* const shared = is_key ? key : value;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const C one = as_stored<T, C>(first[i], divisor);
      const C other = as_stored<T, C>(second[i], divisor);
      shared[pairs[i].first] = to[pairs[i].first] = one;
      shared[pairs[i].second] = to[pairs[i].second] = other;
    }
  }
};

}  // namespace rtp_llm::cuda
