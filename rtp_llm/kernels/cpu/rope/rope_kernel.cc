// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/rope/rope.h"

#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// (a, b) -> (a cos - b sin, b cos + a sin) for pairs half a rotation apart.
template <class T>
void rotate_halves(T* head, const float* cos, const float* sin, int64_t half) {
  T* const other = head + half;
  for_vectors(half, [&](int64_t i, int count) {
    const Vec a = Vec::load(head + i, count);
    const Vec b = Vec::load(other + i, count);
    const Vec c = Vec::load(cos + i, count);
    const Vec s = Vec::load(sin + i, count);
    (a * c - b * s).store(head + i, count);
    fma(b, c, a * s).store(other + i, count);
  });
}

// The same for neighbours. The pairs are split into two short arrays and joined again: few models
// need it, and the arrays stay in the first-level cache.
template <class T>
void rotate_neighbours(T* head, const float* cos, const float* sin, int64_t half) {
  constexpr int64_t kChunk = 64;
  T even[kChunk];
  T odd[kChunk];
  for (int64_t first = 0; first < half; first += kChunk) {
    const int64_t size = half - first < kChunk ? half - first : kChunk;
    T* const pairs = head + 2 * first;
    for (int64_t i = 0; i < size; ++i) {
      even[i] = pairs[2 * i];
      odd[i] = pairs[2 * i + 1];
    }
    for_vectors(size, [&](int64_t i, int count) {
      const Vec a = Vec::load(even + i, count);
      const Vec b = Vec::load(odd + i, count);
      const Vec c = Vec::load(cos + first + i, count);
      const Vec s = Vec::load(sin + first + i, count);
      (a * c - b * s).store(even + i, count);
      fma(b, c, a * s).store(odd + i, count);
    });
    for (int64_t i = 0; i < size; ++i) {
      pairs[2 * i] = even[i];
      pairs[2 * i + 1] = odd[i];
    }
  }
}

template <class T>
void rotate_token(const RopeKvWriteArgs& args, T* row, int64_t position) {
  const int64_t half = args.rotary_dim / 2;
  const float* cos = args.cos_sin + position * args.rotary_dim;
  T* head = row + args.rotary_offset;
  for (int64_t h = 0; h < args.num_heads + args.num_kv_heads; ++h, head += args.head_dim) {
    if (args.is_neox) {
      rotate_halves(head, cos, cos + half, half);
    } else {
      rotate_neighbours(head, cos, cos + half, half);
    }
  }
}

template <class T>
void store_token(const RopeKvWriteArgs& args, const T* row, int64_t slot) {
  const int64_t size = args.num_kv_heads * args.head_dim;
  const T* const key = row + args.num_heads * args.head_dim;
  T* const place = static_cast<T*>(args.kv_cache) + slot / args.block_size * args.block_stride +
                   slot % args.block_size * size;
  __builtin_memcpy(place, key, static_cast<size_t>(size) * sizeof(T));
  __builtin_memcpy(place + args.plane_stride, key + size, static_cast<size_t>(size) * sizeof(T));
}

}  // namespace

RTP_LLM_OPERATOR(rope_kv_write, args.tokens,
                 grain_rows((args.num_heads + 2 * args.num_kv_heads) * args.head_dim * 8))
void rope_kv_write(const RopeKvWriteArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t token = begin; token < end; ++token) {
      T* row = static_cast<T*>(args.qkv) + token * args.stride;
      if (args.cos_sin != nullptr) rotate_token(args, row, args.positions[token]);
      if (args.kv_cache != nullptr && args.slots[token] >= 0) {
        store_token(args, row, args.slots[token]);
      }
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
