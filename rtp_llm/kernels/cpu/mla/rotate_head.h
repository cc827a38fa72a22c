// SPDX-License-Identifier: Apache-2.0
// The rotary embedding of the heads of one token.
#pragma once

#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// (a, b) -> (a cos - b sin, b cos + a sin).
template <class T>
inline void rotate_pairs(const T* a, const T* b, T* first, T* second, const float* cos,
                         const float* sin, int64_t size) {
  for_vectors(size, [&](int64_t i, int count) {
    const Vec x = Vec::load(a + i, count);
    const Vec y = Vec::load(b + i, count);
    const Vec c = Vec::load(cos + i, count);
    const Vec s = Vec::load(sin + i, count);
    (x * c - y * s).store(first + i, count);
    fma(y, c, x * s).store(second + i, count);
  });
}

// `angles` are the cosines and sines of the token, `size` numbers; null copies. `to` may be `from`.
template <class T>
inline void rotate(const T* from, T* to, const float* angles, int64_t rope_size, bool is_neox) {
  const int64_t half = rope_size / 2;
  if (angles == nullptr) {
    __builtin_memmove(to, from, static_cast<size_t>(rope_size) * sizeof(T));
  } else if (is_neox) {
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

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
