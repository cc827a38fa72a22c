// The new token's heads before attention: norm, rotation, and the new key and value into the cache.
#pragma once

#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/cuda/decode_attention_tile.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

// Channels that turn together, or, beyond the rotation, just two of them; D / 2 in a head.
struct ChannelPair {
  int first, second;
  float cos, sin;

  ChannelPair() = default;

  __device__ ChannelPair(const DecodeAttentionArgs& args, int pair, int position)
      : cos(1.0f), sin(0.0f) {
    const int half = args.rotary_dim / 2;
    if (pair < half) {
      first = args.rotary_offset + (args.is_neox ? pair : 2 * pair);
      second = first + (args.is_neox ? half : 1);
      const float* const row = args.cos_sin + int64_t{position} * args.rotary_dim + pair;
      cos = row[0];
      sin = row[half];
      return;
    }
    const auto beside = [&](int i) { return i < args.rotary_offset ? i : i + args.rotary_dim; };
    first = beside(2 * (pair - half));
    second = beside(2 * (pair - half) + 1);
  }
};

// One element of the cache: how it is stored, and what attention reads back, without the scale.
template <class T, class C>
struct Stored {
  C element;
  float value;

  __device__ Stored(T from, float divisor) {
    if constexpr (sizeof(C) == 1) {
      element = float8_e4m3(__float_as_uint(to_float(from) / divisor), false);
      value = __half2float(__half(__nv_cvt_fp8_to_halfraw(element, __NV_E4M3)));
    } else {
      element = divisor == 1.0f ? from : from_float<T>(to_float(from) / divisor);
      value = to_float(element);
    }
  }
};

// What the block of threads shares: queries as the products take them, and the new key and value.
template <class T, class C, int D, int N>
struct NewHeads {
  using Math = typename Tile<T, C, D, N>::Math;
  static constexpr int kPitch = Tile<T, C, D, N>::kPitch;
  static constexpr int kPairs = D / 2 / kGroup;  // of a lane

  alignas(16) Math queries[N * kHeadsOfTile][kPitch];
  float key[D], value[D];
  float score[N * kHeadsOfTile];  // of the new key with each query, in powers of two

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
      if (head <= group) turn(args, pairs, is_query, first, second);
      if (is_query) {
        share_query(head, pairs, first, second);
      } else {
        store(args, pairs, head == group, slot, first, second);
      }
    }
    for (int i = thread_index(); i < (N * kHeadsOfTile - group) * D; i += thread_count()) {
      queries[group + i / D][i % D] = Math{0};
    }
  }

  // The new key's scores; all of the block has prepared.
  __device__ void score_new(const DecodeAttentionArgs& args, const ScoreScale& scale) {
    const int group = args.num_heads / args.num_kv_heads;
    const int lane = thread_index() % kGroup;
    for (int q = thread_index() / kGroup; q < group; q += thread_count() / kGroup) {
      float sum = 0.0f;
#pragma unroll
      for (int i = lane; i < D; i += kGroup) sum += to_float(queries[q][i]) * key[i];
      sum = reduce_group(sum, Sum());
      if (lane == 0) score[q] = scale(sum);
    }
  }

 private:
  // Norm (rounded, as when a kernel of its own had written it), then rotation.
  __device__ static void turn(const DecodeAttentionArgs& args, const ChannelPair (&pairs)[kPairs],
                              bool is_query, T (&first)[kPairs], T (&second)[kPairs]) {
    const T* const weight = static_cast<const T*>(is_query ? args.q_weight : args.k_weight);
    float inverse = 1.0f;
    if (weight != nullptr) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        squares +=
            to_float(first[i]) * to_float(first[i]) + to_float(second[i]) * to_float(second[i]);
      }
      inverse = 1.0f / sqrtf(reduce_group(squares, Sum()) / static_cast<float>(D) + args.eps);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float a = to_float(first[i]);
      float b = to_float(second[i]);
      if (weight != nullptr) {
        a = to_float(from_float<T>(a * (inverse * to_float(weight[pairs[i].first]))));
        b = to_float(from_float<T>(b * (inverse * to_float(weight[pairs[i].second]))));
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
                  slot / args.block_size * args.kv_block_stride +
                  (slot % args.block_size) * args.kv_token_stride +
                  blockIdx.x * args.kv_head_stride;
    float* const shared = is_key ? key : value;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Stored<T, C> one(first[i], divisor);
      const Stored<T, C> other(second[i], divisor);
      shared[pairs[i].first] = one.value;
      shared[pairs[i].second] = other.value;
      to[pairs[i].first] = one.element;
      to[pairs[i].second] = other.element;
    }
  }
};

}  // namespace rtp_llm::cuda
