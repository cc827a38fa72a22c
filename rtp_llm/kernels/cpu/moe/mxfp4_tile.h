// SPDX-License-Identifier: Apache-2.0
// Rows of x by weight rows in MXFP4, which are decoded in registers: the kernels of one instruction
// set. With bfloat16 instructions they are for x in bfloat16: numbers of e2m1 with their scales are
// exact in it, and a byte is a pair of neighbours.
#pragma once

#include "rtp_llm/kernels/cpu/moe/mxfp4_kernels.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

#if defined(__AVX512BF16__)
#include "rtp_llm/kernels/cpu/moe/mxfp4_pairs.h"
#else
#include "rtp_llm/kernels/cpu/moe/mxfp4_floats.h"
#endif

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

struct WeightRows {
  const uint8_t* blocks[kGroupRows];
  const uint8_t* scales[kGroupRows];
  int64_t next;  // bytes to the group that is fetched meanwhile
};

// Weight rows from `first` on; past the end, the last one is repeated.
WeightRows rows_from(const Mxfp4GroupedLinearArgs& args, int expert, int64_t first) {
  WeightRows made;
  for (int j = 0; j < kGroupRows; ++j) {
    const int64_t row = expert * args.n + (first + j < args.n ? first + j : args.n - 1);
    made.blocks[j] = args.blocks + row * args.row_bytes();
    made.scales[j] = args.scales + row * args.row_scales();
  }
  made.next = kGroupRows * args.row_bytes();
  return made;
}

// sums[i * kGroupRows + begin + j]: row i of x by weight row begin + j.
template <int kRows, int kWeights>
RTP_LLM_ALWAYS_INLINE void multiply_tile(const Panel* x, int64_t k, const WeightRows& weights,
                                         int begin, Vec* sums) {
  Vec sum[kRows][kWeights];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kWeights; ++j) sum[i][j] = Vec::zero();
  }
  for (int64_t block = 0; block < k / kMxfp4Block; ++block) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const Panel* const from = x + block * kMxfp4Block + part * kPartColumns;
      Columns columns[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) columns[i] = columns_of(from + i * k);
#pragma GCC unroll 8
      for (int j = 0; j < kWeights; ++j) {
        const uint8_t* const bytes =
            weights.blocks[begin + j] + block * kBlockBytes + part * kPartColumns / 2;
        const Columns w = decoded(bytes, weights.scales[begin + j][block]);
        if (part == 0 && block % 4 == 0) __builtin_prefetch(bytes + weights.next, 0, 2);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) sum[i][j] = add_products(columns[i], w, sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kWeights; ++j) sums[i * kGroupRows + begin + j] = sum[i][j];
  }
}

template <int kRows>
void multiply_rows(const Panel* x, int64_t k, const WeightRows& weights, Vec* sums) {
  constexpr int kWeights = weight_rows(kRows);
  for (int begin = 0; begin < kGroupRows; begin += kWeights) {
    multiply_tile<kRows, kWeights>(x, k, weights, begin, sums);
  }
}

// Calls multiply_rows for a height that is known at run time only.
template <int kRows = kMaxRows>
void multiply_any(int rows, const Panel* x, int64_t k, const WeightRows& weights, Vec* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_rows<kRows>(x, k, weights, sums);
    multiply_any<kRows - 1>(rows, x, k, weights, sums);
  }
}

// out[row, first + j] = sums[j] + bias.
template <class T>
void store_row(const Mxfp4GroupedLinearArgs& args, const float* sums, int64_t row, int expert,
               int64_t first, int64_t count) {
  const T* bias = nullptr;
  if (args.bias != nullptr) bias = static_cast<const T*>(args.bias) + expert * args.n + first;
  T* const out = static_cast<T*>(args.out) + row * args.n + first;
  for_vectors(count, [&](int64_t j, int lanes) {
    Vec y = Vec::load(sums + j, lanes);
    if (bias != nullptr) y = y + Vec::load(bias + j, lanes);
    y.store(out + j, lanes);
  });
}

void store(const Mxfp4GroupedLinearArgs& args, const float* sums, int64_t row, int64_t rows,
           int expert, int64_t first, int64_t count) {
  visit_tile_dtype(args.dtype, [&](auto element) {
    for (int64_t i = 0; i < rows; ++i) {
      store_row<decltype(element)>(args, sums + i * count, row + i, expert, first, count);
    }
  });
}

void multiply(const Mxfp4GroupedLinearArgs& args, const void* panel, int64_t row, int rows,
              int expert, int64_t first, int64_t count) {
  // Whole vectors of sums, of which the last may not be all used.
  Vec sums[kMaxRows * kGroupRows + kWidth];
  alignas(64) float results[kMaxRows * kGroupRows + kWidth];
  for (Vec& sum : sums) sum = Vec::zero();
  for (int64_t done = 0; done < count; done += kGroupRows) {
    const WeightRows weights = rows_from(args, expert, first + done);
    multiply_any(rows, static_cast<const Panel*>(panel), args.k, weights, sums);
    for (int i = 0; i < rows * kGroupRows; i += kWidth) sum_each(sums + i).store(results + i);
    const int64_t rest = count - done < kGroupRows ? count - done : kGroupRows;
    visit_tile_dtype(args.dtype, [&](auto element) {
      for (int i = 0; i < rows; ++i) {
        store_row<decltype(element)>(args, results + i * kGroupRows, row + i, expert, first + done,
                                     rest);
      }
    });
  }
}

void decode(const Mxfp4GroupedLinearArgs& args, int expert, int64_t first, int64_t count,
            void* weight) {
  auto* to = static_cast<Panel*>(weight);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t row = expert * args.n + first + j;
    const uint8_t* const blocks = args.blocks + row * args.row_bytes();
    const uint8_t* const scales = args.scales + row * args.row_scales();
    for (int64_t block = 0; block < args.row_scales(); ++block) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part, to += kPartColumns) {
        const uint8_t* const bytes = blocks + block * kBlockBytes + part * kPartColumns / 2;
        store_columns(decoded(bytes, scales[block]), to);
      }
    }
  }
}

void pack(const Mxfp4GroupedLinearArgs& args, int64_t row, void* panel) {
  auto* const to = static_cast<Panel*>(panel);
  visit_tile_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    pack_row(static_cast<const T*>(args.x) + row * args.k, args.k, to);
  });
}

}  // namespace

const Mxfp4Kernels kMxfp4Kernels = {kPanelDType, kMaxRows, pack, multiply, decode, store};

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
