// SPDX-License-Identifier: Apache-2.0
// Rows of x as they meet a group of the weight: floats, or numbers of 8 bits. Included by
// linear_int8_kernels.h.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/linear_int8_bytes.h"
#include "rtp_llm/kernels/cpu/gemm/linear_int8_dot.h"
#include "rtp_llm/kernels/cpu/gemm/linear_int8_quantize.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

constexpr int kParts = kInt8BlockRows / Vec::kWidth;  // vectors of a weight block

// Weight blocks that meet all tiles of x before the next ones are read.
#if defined(__AVX512F__)
constexpr int kPassBlocks = 4;
#elif defined(__AVX2__)
constexpr int kPassBlocks = 2;
#else
constexpr int kPassBlocks = 1;
#endif

struct WeightBlocks {
  const uint8_t* weight[kPassBlocks];
  const float* scale[kPassBlocks];
  int64_t next;  // bytes to the weights that are fetched meanwhile
};

// Twice, as linear_tile.h does.
inline void prefetch_step(const uint8_t* step, int64_t next) {
  __builtin_prefetch(step + next, 0, 2);
  __builtin_prefetch(step + next / 2, 0, 2);
}

// As they are. The products of a group are summed and then scaled, so that a weight becomes a float
// in a register, exactly, and nothing else is rounded than in a product of floats.
struct FloatRows {
  using Word = float;
  static constexpr int kGroupWords = kInt8GroupColumns;

  // Rows of x in a tile, and weight blocks that meet it in registers.
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 8;
  static constexpr int max_blocks(int x_rows) { return x_rows <= 3 ? 4 : 2; }
#elif defined(__AVX2__)
  static constexpr int kMaxRows = 5;
  static constexpr int max_blocks(int x_rows) { return x_rows <= 2 ? 2 : 1; }
#else
  static constexpr int kMaxRows = 1;
  static constexpr int max_blocks(int /*x_rows*/) { return 1; }
#endif

  // Adds the products of column 4 * step + kColumn: kRows rows of x by kVectors vectors of weights.
  template <int kColumn, int kRows, int kVectors>
  static RTP_LLM_ALWAYS_INLINE void add_column(const float* x, const ByteColumns (&w)[kVectors],
                                               Vec (&dots)[kRows][kVectors]) {
    Vec weight[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) weight[v] = w[v].template column<kColumn>();
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec column = in_register(Vec::set(x[kColumn * kRows + i]));
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) dots[i][v] = fma(column, weight[v], dots[i][v]);
    }
  }

  // Adds the products of one group of columns, scaled, to the sums of kRows rows of x.
  template <int kRows, int kBlocks>
  static RTP_LLM_ALWAYS_INLINE void add_group(const float* x, const WeightBlocks& blocks, int first,
                                              int64_t group, Vec (&sum)[kRows][kBlocks * kParts]) {
    constexpr int kVectors = kBlocks * kParts;
    Vec dots[kRows][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) dots[i][v] = Vec::zero();
    }
    const int64_t start = group * kInt8GroupColumns * kInt8BlockRows;
    for (int s = 0; s < kInt8Steps; ++s, x += 4 * kRows) {
      ByteColumns w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const uint8_t* step = blocks.weight[first + v / kParts] + start + s * kInt8BlockRows * 4;
        w[v] = ByteColumns::load(step + v % kParts * Vec::kWidth * 4);
        if (v % kParts == 0) prefetch_step(step, blocks.next);
      }
      add_column<0>(x, w, dots);
      add_column<1>(x, w, dots);
      add_column<2>(x, w, dots);
      add_column<3>(x, w, dots);
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = Vec::load(blocks.scale[first + v / kParts] + group * kInt8BlockRows +
                                  v % kParts * Vec::kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i][v] = fma(dots[i][v], scale, sum[i][v]);
    }
  }
};

// Quantised as they come, with a scale for each group: their products are whole numbers.
struct QuantizedRows {
  using Word = int32_t;
  static constexpr int kGroupWords = kInt8GroupWords;

  // Whether so few rows meet one block at a time, without prefetches: see linear_tile.h.
#if defined(__AVX512F__)
  static constexpr bool reads_in_order(int x_rows) { return x_rows <= 2; }
#else
  static constexpr bool reads_in_order(int x_rows) { return x_rows == 1; }
#endif

#if defined(__AVX512F__)
  static constexpr int kMaxRows = 7;
  static constexpr int max_blocks(int x_rows) { return reads_in_order(x_rows) ? 1 : 2; }
#elif defined(__AVX2__)
  static constexpr int kMaxRows = 4;
  static constexpr int max_blocks(int /*x_rows*/) { return 1; }
#else
  static constexpr int kMaxRows = 1;
  static constexpr int max_blocks(int /*x_rows*/) { return 1; }
#endif

  // The products of one group of columns, whole numbers: kRows rows of x by kBlocks blocks.
  template <int kRows, int kBlocks>
  static RTP_LLM_ALWAYS_INLINE void group_dots(const int32_t* x,
                                               const uint8_t* const (&weight)[kBlocks],
                                               int64_t next,
                                               Dots (&dots)[kRows][kBlocks * kParts]) {
    constexpr int kVectors = kBlocks * kParts;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) dots[i][v] = Dots::first(x + kInt8Steps * kRows + i);
    }
    for (int s = 0; s < kInt8Steps; ++s) {
      Weights w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const uint8_t* step = weight[v / kParts] + s * kInt8BlockRows * 4;
        w[v] = Weights::load(step + v % kParts * Vec::kWidth * 4);
        if (v % kParts == 0 && !reads_in_order(kRows)) prefetch_step(step, next);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Column column = Column::load(x + s * kRows + i);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) dots[i][v] = w[v].add(column, dots[i][v]);
      }
    }
  }

  // Adds the products of one group of columns, scaled, to the sums of kRows rows of x.
  template <int kRows, int kBlocks>
  static RTP_LLM_ALWAYS_INLINE void add_group(const int32_t* x, const WeightBlocks& blocks,
                                              int first, int64_t group,
                                              Vec (&sum)[kRows][kBlocks * kParts]) {
    const uint8_t* weight[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      weight[b] = blocks.weight[first + b] + group * kInt8GroupColumns * kInt8BlockRows;
    }
    Dots dots[kRows][kBlocks * kParts];
    group_dots<kRows, kBlocks>(x, weight, blocks.next, dots);
#pragma GCC unroll 16
    for (int v = 0; v < kBlocks * kParts; ++v) {
      const Vec weight_scale = Vec::load(blocks.scale[first + v / kParts] + group * kInt8BlockRows +
                                         v % kParts * Vec::kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        float x_scale;
        std::memcpy(&x_scale, x + (kInt8Steps + 1) * kRows + i, sizeof(x_scale));
        sum[i][v] = fma(dots[i][v].to_float(), weight_scale * Vec::set(x_scale), sum[i][v]);
      }
    }
  }
};

}  // namespace
}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
