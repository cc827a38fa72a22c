// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/mla/mla.h"

#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

template <class T>
float inverse_latent_rms(const T* x, int64_t size, float eps) {
  Vec sum = Vec::zero();
  for_vectors(size, [&](int64_t i, int count) {
    const Vec a = Vec::load(x + i, count);
    sum = fma(a, a, sum);
  });
  return 1.0f / __builtin_sqrtf(sum.sum() / static_cast<float>(size) + eps);
}

template <class T>
void norm_latent(const MlaRotateAndStoreArgs& args, const T* from, T* to) {
  const Vec factor = Vec::set(inverse_latent_rms(from, args.latent_size, args.eps));
  const T* const weight = static_cast<const T*>(args.norm_weight);
  for_vectors(args.latent_size, [&](int64_t i, int count) {
    (Vec::load(from + i, count) * factor * Vec::load(weight + i, count)).store(to + i, count);
  });
}

// (a, b) -> (a cos - b sin, b cos + a sin).
template <class T>
void rotate_pairs(const T* a, const T* b, T* first, T* second, const float* cos, const float* sin,
                  int64_t size) {
  for_vectors(size, [&](int64_t i, int count) {
    const Vec x = Vec::load(a + i, count);
    const Vec y = Vec::load(b + i, count);
    const Vec c = Vec::load(cos + i, count);
    const Vec s = Vec::load(sin + i, count);
    (x * c - y * s).store(first + i, count);
    fma(y, c, x * s).store(second + i, count);
  });
}

// `angles` are the cosines and sines of the token; null copies. `to` may be `from`.
template <class T>
void rotate(const MlaRotateAndStoreArgs& args, const T* from, T* to, const float* angles) {
  const int64_t half = args.rope_size / 2;
  if (angles == nullptr) {
    __builtin_memmove(to, from, static_cast<size_t>(args.rope_size) * sizeof(T));
  } else if (args.is_neox) {
    rotate_pairs(from, from + half, to, to + half, angles, angles + half, half);
  } else {
    // Neighbours are taken apart and joined again, a chunk that stays in the first-level cache.
    constexpr int64_t kChunk = 64;
    T even[kChunk];
    T odd[kChunk];
    for (int64_t first = 0; first < half; first += kChunk) {
      const int64_t size = half - first < kChunk ? half - first : kChunk;
      for (int64_t i = 0; i < size; ++i) {
        even[i] = from[2 * (first + i)];
        odd[i] = from[2 * (first + i) + 1];
      }
      rotate_pairs(even, odd, even, odd, angles + first, angles + half + first, size);
      for (int64_t i = 0; i < size; ++i) {
        to[2 * (first + i)] = even[i];
        to[2 * (first + i) + 1] = odd[i];
      }
    }
  }
}

template <class T>
void take_token(const MlaRotateAndStoreArgs& args, int64_t token) {
  const float* const angles =
      args.cos_sin == nullptr ? nullptr : args.cos_sin + args.positions[token] * args.rope_size;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    rotate(
        args,
        static_cast<const T*>(args.q) + token * args.q_token_stride + head * args.q_head_stride,
        static_cast<T*>(args.q_out) + token * args.out_token_stride + head * args.out_head_stride,
        angles);
  }
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const T* const from = static_cast<const T*>(args.kv) + token * args.kv_stride;
  T* const to = static_cast<T*>(args.cache) + slot / args.block_size * args.block_stride +
                slot % args.block_size * args.slot_stride;
  norm_latent(args, from, to);
  rotate(args, from + args.latent_size, to + args.latent_size, angles);
}

}  // namespace

RTP_LLM_OPERATOR(mla_rotate_and_store, args.tokens,
                 grain_rows((args.num_heads * args.rope_size + args.latent_size) * 8))
void mla_rotate_and_store(const MlaRotateAndStoreArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    for (int64_t token = begin; token < end; ++token) take_token<decltype(element)>(args, token);
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
