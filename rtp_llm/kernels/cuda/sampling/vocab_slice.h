// SPDX-License-Identifier: Apache-2.0
// A block's vocabulary slice of a row of logits, the order of tokens, and their weights.
#pragma once

#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

using Key = unsigned long long;
using Mass = unsigned long long;

// Neighbouring tokens of a row's vocabulary: the first one's index, how many, and their logits.
struct VocabSlice {
  const float* logits;
  int begin, size;
};

// Threads that share a slice: the calling one's number, and how many there are.
struct Sharers {
  int number, count;

  __device__ static Sharers of_block() { return {thread_index(), thread_count()}; }
  __device__ static Sharers of_group() { return {thread_index() % kGroup, kGroup}; }
};

// body(pack, index of its first) for all of a slice, spread over threads, rising for each of them:
// 16 bytes at a time where the slice lies for it, kAhead of them on their way at once.
template <int kAhead, class Body>
__device__ inline void for_packs(const VocabSlice& slice, const Sharers& threads, Body&& body) {
  constexpr int kWide = 4;
  const float* const x = slice.logits;
  const int step = threads.count * kWide;
  const int wide = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? slice.size / kWide * kWide : 0;
  for (int begin = threads.number * kWide; begin < wide; begin += kAhead * step) {
    Pack<float, kWide> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (begin + a * step < wide) packs[a] = load<kWide>(x + begin + a * step);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int at = begin + a * step;
      if (at < wide) body(packs[a], slice.begin + at);
    }
  }
  for (int i = wide + threads.number; i < slice.size; i += threads.count) {
    body(load<1>(x + i), slice.begin + i);
  }
}
template <int kAhead, class Body>
__device__ inline void for_packs(const VocabSlice& slice, Body&& body) {
  for_packs<kAhead>(slice, Sharers::of_block(), body);
}

__device__ inline bool is_finite(float x) { return fabsf(x) < INFINITY; }

// body(logit, index), likewise; what is not finite reads as -inf.
template <class Body>
__device__ inline void for_logits(const VocabSlice& slice, const Sharers& threads, Body&& body) {
  for_packs<4>(slice, threads, [&](const auto& pack, int index) {
    constexpr int kWide = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float x = pack.element[i];
      body(is_finite(x) ? x : -INFINITY, index + i);
    }
  });
}
template <class Body>
__device__ inline void for_logits(const VocabSlice& slice, Body&& body) {
  for_logits(slice, Sharers::of_block(), body);
}

// Larger keys come first. Both zeros are equal.
__device__ inline Key key_of(float x, int index) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  const uint32_t rising = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (Key{rising} << 32) | (0xffffffffU - static_cast<uint32_t>(index));
}

// Of these keys larger ones have a lower index.
__device__ inline Key swap_halves(Key key) { return (key << 32) | (key >> 32); }

__device__ inline int index_of(Key key) {
  return static_cast<int>(0xffffffffU - static_cast<uint32_t>(key));
}

__device__ inline float logit_of(Key key) {
  const uint32_t rising = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((rising >> 31) != 0 ? rising & 0x7fffffffU : ~rising);
}

__device__ inline float power_of_two(float x) {
#if defined(__HIPCC__)
  return exp2f(x);
#else
  float y;  // without exp2f's care for results that are not normal
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Probabilities of a row in relation to its best token, as multiples of 2^-bits. Their sum over the
// vocabulary fits into 62 bits: whole numbers, so that sums do not depend on the order of additions
// and a row gives the same token however many blocks work on it.
struct Weighting {
  float best;
  float rate;  // powers of two per logit
  float unit;
  float least = 0.0f;  // what would weigh less weighs nothing

  __device__ Weighting(float best, float temperature, int vocab)
      : best(best), rate(1.44269504088896340736f / temperature) {
    rate = fmaxf(fminf(rate, 3.4e38f), 1.2e-38f);
    const int vocab_bits = 32 - __clz(vocab - 1);
    unit = static_cast<float>(Mass{1} << (62 - vocab_bits));
  }

  // x is finite or -inf.
  __device__ Mass operator()(float x) const { return static_cast<Mass>(fraction(x)); }

  // The same before it becomes a whole number.
  __device__ float fraction(float x) const {
    const float weight = unit * power_of_two((x - best) * rate);
    return weight >= least ? weight : 0.0f;
  }
};

}  // namespace rtp_llm::cuda
