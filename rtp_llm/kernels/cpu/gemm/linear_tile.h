// SPDX-License-Identifier: Apache-2.0
// The register tile of linear(): rows of x by rows of the weight, sums in registers.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/linear_block.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

// As many sums as fit in registers along with one vector of each weight row and one of x.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
constexpr int kGroupRows = 12;
constexpr int weight_rows(int x_rows) { return x_rows <= 6 ? 4 : 3; }
#elif defined(__AVX2__)
constexpr int kMaxRows = 4;
constexpr int kGroupRows = 12;
constexpr int weight_rows(int x_rows) { return x_rows <= 2 ? 4 : 3; }
#else
constexpr int kMaxRows = 4;
constexpr int kGroupRows = 1;
constexpr int weight_rows(int /*x_rows*/) { return 1; }
#endif

// Weights become float32 as they are read; x is float32 in the panel.
template <class T>
struct FloatFormat {
  using Weight = T;
  using Panel = float;
  static constexpr int kStep = kWidth;
  static Vec load(const T* p) { return Vec::load(p); }
  static Vec load(const T* p, int count) { return Vec::load(p, count); }
  static Vec add_product(Vec x, Vec w, Vec sum) { return fma(x, w, sum); }
};

// Both stay bfloat16 and are multiplied in pairs; nothing is lost, the products are exact.
struct PairFormat {
  using Weight = BFloat16;
  using Panel = BFloat16;
  static constexpr int kStep = 2 * kWidth;
  static Vec load(const BFloat16* p) { return Vec::load(reinterpret_cast<const float*>(p)); }
  static Vec load(const BFloat16* p, int count) {
    alignas(64) BFloat16 buffer[kStep] = {};
    std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(BFloat16));
    return load(buffer);
  }
  static Vec add_product(Vec x, Vec w, Vec sum) { return dot_bfloat16(x, w, sum); }
};

inline Vec load_panel(const float* p) { return Vec::load(p); }
inline Vec load_panel(const BFloat16* p) { return Vec::load(reinterpret_cast<const float*>(p)); }

// Loaded once: GCC would repeat the load in each of the products, and loads are what limits a tile.
inline Vec in_register(Vec x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x.value));
#elif defined(__AVX2__)
  asm("" : "+x"(x.value));
#endif
  return x;
}

// Prefetches into the second-level cache, where it does not evict the panel. Each cache line is
// requested twice, since a processor drops requests that it has no room to track: measured with one
// core and 2 rows, 35 GB/s become 45. When reading half a line at a time this happens by itself.
template <int kBytes, class T>
inline void prefetch(const T* p, int64_t next) {
  __builtin_prefetch(p + next, 0, 2);
  if constexpr (kBytes >= 64) __builtin_prefetch(p + next / 2, 0, 2);
}

// Whether so few rows of x meet one weight row at a time. Memory is then read from end to end,
// which the processor fetches ahead by itself: with one row, 34 GB/s in a core instead of 25 with
// six weight rows at once and prefetches. Shorter steps would wait for the sum of the step before.
template <class Format>
constexpr bool reads_in_order(int x_rows) {
  return x_rows <= 2 && Format::kStep * sizeof(typename Format::Weight) >= 32;
}

// The weight rows that meet a tile before the next tile comes.
template <class T>
struct WeightGroup {
  const T* rows[kGroupRows];
  int64_t k;
  int64_t next;  // elements from here to the next group, which is fetched meanwhile
};

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

// Adds the products of one step: kRows vectors of x by one of each weight row.
template <class Format, int kRows, int kWeights>
RTP_LLM_ALWAYS_INLINE void add_step(const typename Format::Panel* x, const Vec (&w)[kWeights],
                                    Vec (&sum)[kRows][kWeights]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const Vec column = in_register(load_panel(x + i * Format::kStep));
#pragma GCC unroll 8
    for (int j = 0; j < kWeights; ++j) sum[i][j] = Format::add_product(column, w[j], sum[i][j]);
  }
}

// Adds the products over columns [begin, end), where `begin` is a multiple of the step, and so is
// `end` unless it is k.
template <class Format, int kRows, int kWeights>
RTP_LLM_ALWAYS_INLINE void add_columns(const typename Format::Panel* x,
                                       const typename Format::Weight* const (&rows)[kWeights],
                                       int64_t next, int64_t begin, int64_t end,
                                       Vec (&sum)[kRows][kWeights]) {
  constexpr int kStep = Format::kStep;
  constexpr int kStepBytes = kStep * sizeof(typename Format::Weight);
  const int64_t whole = end / kStep * kStep;
  Vec w[kWeights];
  for (int64_t c = begin; c < whole; c += kStep) {
#pragma GCC unroll 8
    for (int j = 0; j < kWeights; ++j) {
      w[j] = Format::load(rows[j] + c);
      if constexpr (!reads_in_order<Format>(kRows)) prefetch<kStepBytes>(rows[j] + c, next);
    }
    add_step<Format>(x + c * kRows, w, sum);
  }
  if (whole < end) {
#pragma GCC unroll 8
    for (int j = 0; j < kWeights; ++j) {
      w[j] = Format::load(rows[j] + whole, static_cast<int>(end - whole));
    }
    add_step<Format>(x + whole * kRows, w, sum);
  }
}

// Adds the products over columns [begin, end) to the sums in memory, or begins them at column 0.
// sums[i * kGroupRows + j] belongs to row i of x and weight row j.
template <class Format, int kRows, int kWeights>
RTP_LLM_ALWAYS_INLINE void multiply_tile(const typename Format::Panel* x,
                                         const WeightGroup<typename Format::Weight>& weights,
                                         int first, int64_t begin, int64_t end, Vec* sums) {
  const typename Format::Weight* rows[kWeights];
  Vec sum[kRows][kWeights];
#pragma GCC unroll 8
  for (int j = 0; j < kWeights; ++j) {
    rows[j] = weights.rows[first + j];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      sum[i][j] = begin == 0 ? Vec::zero() : sums[i * kGroupRows + first + j];
    }
  }
  add_columns<Format>(x, rows, weights.next, begin, end, sum);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kWeights; ++j) sums[i * kGroupRows + first + j] = sum[i][j];
  }
}

// All sums of kRows rows of x by the weight group. In passes over k, unless memory is read in
// order: that part of the tile of x stays in the first level of the cache, and the sums wait in
// memory.
template <class Format, int kRows>
void multiply_rows(const typename Format::Panel* x,
                   const WeightGroup<typename Format::Weight>& weights, Vec* sums) {
  if constexpr (reads_in_order<Format>(kRows)) {
    for (int first = 0; first < kGroupRows; ++first) {
      multiply_tile<Format, kRows, 1>(x, weights, first, 0, weights.k, sums);
    }
  } else {
    constexpr int kWeights = weight_rows(kRows);
    constexpr int64_t kPass = 3072 / sizeof(typename Format::Panel);
    for (int64_t begin = 0; begin < weights.k; begin += kPass) {
      const int64_t end = weights.k - begin < kPass ? weights.k : begin + kPass;
      for (int first = 0; first < kGroupRows; first += kWeights) {
        multiply_tile<Format, kRows, kWeights>(x, weights, first, begin, end, sums);
      }
    }
  }
}

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
