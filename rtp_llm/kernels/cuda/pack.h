// SPDX-License-Identifier: Apache-2.0
// Several neighbouring elements that one thread reads or writes at once.
#pragma once

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T element[N];
};

template <int N, class T>
__device__ inline Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

// Left to itself nvcc writes elements of 16 bits that were computed one by one in four stores of
// four bytes.
template <class T, int N>
__device__ inline void store(T* to, const Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == sizeof(Words4)) {
    *reinterpret_cast<Words4*>(to) = __builtin_bit_cast(Words4, pack);
  } else {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  }
}

template <class T, int N>
__device__ inline void widen(const Pack<T, N>& pack, float (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(pack.element[i]);
}

// Rounds two at a time where the hardware does.
template <class T, int N>
__device__ inline Pack<T, N> narrow(const float (&from)[N]) {
  Pack<T, N> pack;
  if constexpr (N % 2 == 0 && sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      from_floats(from[i], from[i + 1], &pack.element[i], &pack.element[i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.element[i] = from_float<T>(from[i]);
  }
  return pack;
}

}  // namespace rtp_llm::cuda
