// SPDX-License-Identifier: Apache-2.0
// Rows of x by weight rows in MXFP4, which are decoded in registers: the kernels of one instruction
// set. With bfloat16 instructions they are for x in bfloat16: numbers of e2m1 with their scales are
// exact in it, and a byte is a pair of neighbours. Those of other tables are rounded to it.
#pragma once

#include <cmath>
#include <cstring>

#include "rtp_llm/kernels/cpu/gemm/linear_panel.h"
#include "rtp_llm/kernels/cpu/moe/mxfp4_kernels.h"
#include "rtp_llm/kernels/cpu/moe/table4_scales.h"
#include "rtp_llm/kernels/cpu/vec_tile.h"

#if defined(__AVX512BF16__)
#include "rtp_llm/kernels/cpu/moe/mxfp4_pairs.h"
#include "rtp_llm/kernels/cpu/moe/table4_pairs.h"
#else
#include "rtp_llm/kernels/cpu/moe/mxfp4_floats.h"
#include "rtp_llm/kernels/cpu/moe/table4_floats.h"
#endif

#define RTP_LLM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

// Weight rows from `first` on; past the end, the last one is repeated.
struct Mxfp4Rows {
  const uint8_t* blocks[kGroupRows];
  const uint8_t* scales[kGroupRows];
  int64_t next;  // bytes to the group that is fetched meanwhile

  Mxfp4Rows(const Mxfp4GroupedLinearArgs& args, int expert, int64_t first) {
    for (int j = 0; j < kGroupRows; ++j) {
      const int64_t row = expert * args.n + (first + j < args.n ? first + j : args.n - 1);
      blocks[j] = args.blocks + row * args.row_bytes();
      scales[j] = args.scales + row * args.row_scales();
    }
    next = kGroupRows * args.row_bytes();
  }

  template <class T>
  static void pack(const T* x, int64_t k, Panel* panel) {
    pack_row(x, k, panel);
  }
  RTP_LLM_ALWAYS_INLINE Columns columns(int j, int64_t block, int part) const {
    return decoded(bytes(j, block, part), scales[j][block]);
  }
  RTP_LLM_ALWAYS_INLINE const uint8_t* bytes(int j, int64_t block, int part) const {
    return blocks[j] + block * kBlockBytes + part * kPartColumns / 2;
  }
};

// The same of codes that index a table, and whose scales are made floats first, two for a block.
struct Table4Rows {
  const uint8_t* blocks[kGroupRows];
  const float* scales[kGroupRows];
  int64_t next;
  Table4 table;

  Table4Rows(const Mxfp4GroupedLinearArgs& given, int expert, int64_t first)
      : table(static_cast<const Table4GroupedLinearArgs&>(given).table) {
    const auto& args = static_cast<const Table4GroupedLinearArgs&>(given);
    thread_local Buffer buffer;
    const int64_t halves = 2 * args.row_scales();
    auto* to = static_cast<float*>(buffer.at_least(kGroupRows * halves * sizeof(float)));
    for (int j = 0; j < kGroupRows; ++j, to += halves) {
      const int64_t row = expert * args.n + (first + j < args.n ? first + j : args.n - 1);
      blocks[j] = args.blocks + row * args.row_bytes();
      scales[j] = to;
      table4_scales(args, row, to);
    }
    next = kGroupRows * args.row_bytes();
  }

  template <class T>
  static void pack(const T* x, int64_t k, Panel* panel) {
    pack_table4_row(x, k, panel);
  }
  RTP_LLM_ALWAYS_INLINE Columns columns(int j, int64_t block, int part) const {
    return table.columns(bytes(j, block, part), scales[j] + 2 * block, part);
  }
  RTP_LLM_ALWAYS_INLINE const uint8_t* bytes(int j, int64_t block, int part) const {
    return blocks[j] + block * kBlockBytes + part * kPartColumns / 2;
  }
};

// sums[i * kGroupRows + begin + j]: row i of x by weight row begin + j.
template <int kRows, int kWeights, class Rows>
RTP_LLM_ALWAYS_INLINE void multiply_tile(const Panel* x, int64_t k, const Rows& weights, int begin,
                                         Vec* sums) {
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
        const Columns w = weights.columns(begin + j, block, part);
        if (part == 0 && block % 4 == 0) {
          __builtin_prefetch(weights.bytes(begin + j, block, part) + weights.next, 0, 2);
        }
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

template <int kRows, class Rows>
void multiply_rows(const Panel* x, int64_t k, const Rows& weights, Vec* sums) {
  constexpr int kWeights = weight_rows(kRows);
  for (int begin = 0; begin < kGroupRows; begin += kWeights) {
    multiply_tile<kRows, kWeights>(x, k, weights, begin, sums);
  }
}

// Calls multiply_rows for a height that is known at run time only.
template <int kRows = kMaxRows, class Rows>
void multiply_any(int rows, const Panel* x, int64_t k, const Rows& weights, Vec* sums) {
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

template <class Rows>
void multiply(const Mxfp4GroupedLinearArgs& args, const void* panel, int64_t row, int rows,
              int expert, int64_t first, int64_t count) {
  // Whole vectors of sums, of which the last may not be all used.
  Vec sums[kMaxRows * kGroupRows + kWidth];
  alignas(64) float results[kMaxRows * kGroupRows + kWidth];
  for (Vec& sum : sums) sum = Vec::zero();
  for (int64_t done = 0; done < count; done += kGroupRows) {
    const Rows weights(args, expert, first + done);
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

template <class Rows>
void decode(const Mxfp4GroupedLinearArgs& args, int expert, int64_t first, int64_t count,
            void* weight) {
  auto* to = static_cast<Panel*>(weight);
  for (int64_t done = 0; done < count; done += kGroupRows) {
    const Rows weights(args, expert, first + done);
    for (int j = 0; j < kGroupRows && done + j < count; ++j) {
      for (int64_t block = 0; block < args.row_scales(); ++block) {
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part, to += kPartColumns) {
          store_columns(weights.columns(j, block, part), to);
        }
      }
    }
  }
}

template <class Rows>
void pack(const Mxfp4GroupedLinearArgs& args, int64_t row, void* panel) {
  auto* const to = static_cast<Panel*>(panel);
  visit_tile_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    Rows::pack(static_cast<const T*>(args.x) + row * args.k, args.k, to);
  });
}

}  // namespace

const Mxfp4Kernels kMxfp4Kernels = {kPanelDType,         kMaxRows,          pack<Mxfp4Rows>,
                                    multiply<Mxfp4Rows>, decode<Mxfp4Rows>, store};
const Mxfp4Kernels kTable4Kernels = {kPanelDType,          kMaxRows,           pack<Table4Rows>,
                                     multiply<Table4Rows>, decode<Table4Rows>, store};

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA

#undef RTP_LLM_ALWAYS_INLINE
