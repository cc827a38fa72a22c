// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: everything that linear_int8.cc calls.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/int8_isa.h"
#include "rtp_llm/kernels/cpu/gemm/linear_int8_block.h"
#include "rtp_llm/kernels/cpu/gemm/linear_int8_rows.h"

namespace rtp_llm::cpu::RTP_LLM_INT8_ISA {
namespace {

// sums[(i * kPassBlocks + b) * 16 + j]: row i of x by row j of block b.
template <class Rows, int kRows>
void multiply_rows(const typename Rows::Word* x, const WeightBlocks& blocks, int64_t groups,
                   float* sums) {
  constexpr int kBlocks = Rows::max_blocks(kRows);
  for (int first = 0; first < kPassBlocks; first += kBlocks) {
    Vec sum[kRows][kBlocks * kParts];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kBlocks * kParts; ++v) sum[i][v] = Vec::zero();
    }
    for (int64_t g = 0; g < groups; ++g) {
      Rows::template add_group<kRows, kBlocks>(x + g * Rows::kGroupWords * kRows, blocks, first, g,
                                               sum);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kBlocks * kParts; ++v) {
        sum[i][v].store(sums + (i * kPassBlocks + first) * kInt8BlockRows + v * Vec::kWidth);
      }
    }
  }
}

// Calls multiply_rows for a height that is known at run time only.
template <class Rows, int kRows = Rows::kMaxRows>
void multiply_any(int rows, const typename Rows::Word* x, const WeightBlocks& blocks,
                  int64_t groups, float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_rows<Rows, kRows>(x, blocks, groups, sums);
    multiply_any<Rows, kRows - 1>(rows, x, blocks, groups, sums);
  }
}

// Blocks [first, first + kPassBlocks); past the end, the last block is repeated.
WeightBlocks weight_blocks(const Int8LinearArgs& args, const Int8LinearBlock& block,
                           int64_t first) {
  const int64_t whole = args.n / kInt8BlockRows;
  const int64_t scales = args.groups * kInt8BlockRows;
  const int64_t bytes = scales * kInt8GroupColumns;
  WeightBlocks blocks;
  for (int b = 0; b < kPassBlocks; ++b) {
    const int64_t last = args.n % kInt8BlockRows == 0 ? whole - 1 : whole;
    const int64_t index = first + b < last ? first + b : last;
    blocks.weight[b] = index < whole ? args.weight + index * bytes : block.last_weight;
    blocks.scale[b] = index < whole ? args.scale + index * scales : block.last_scale;
  }
  blocks.next = kPassBlocks * bytes;
  return blocks;
}

// out[row + i, first + j] for all rows i and the first `count` columns j of the pass.
template <class T>
void store_sums(const Int8LinearArgs& args, int64_t row, int rows, int64_t first, int count,
                const float* sums) {
  const T* bias = args.bias == nullptr ? nullptr : static_cast<const T*>(args.bias) + first;
  T* out = static_cast<T*>(args.out) + row * args.out_stride + first;
  for (int i = 0; i < rows; ++i, out += args.out_stride, sums += kPassBlocks * kInt8BlockRows) {
    for_vectors(count, [&](int64_t j, int lanes) {
      Vec y = Vec::load(sums + j, lanes);
      if (bias != nullptr) y = y + Vec::load(bias + j, lanes);
      y.store(out + j, lanes);
    });
  }
}

template <class Rows>
void multiply(const Int8LinearArgs& args, const Int8LinearBlock& block, int64_t begin,
              int64_t end) {
  alignas(64) float sums[Rows::kMaxRows * kPassBlocks * kInt8BlockRows];
  for (int64_t pass = begin; pass < end; pass += kPassBlocks) {
    const WeightBlocks blocks = weight_blocks(args, block, pass);
    const int64_t first = pass * kInt8BlockRows;
    const int64_t past = pass + kPassBlocks < end ? pass + kPassBlocks : end;
    const int64_t stop = past * kInt8BlockRows < args.n ? past * kInt8BlockRows : args.n;
    for (int tile = 0; tile < block.tiles; ++tile) {
      const int row = block.tile_begin(tile);
      const int rows = block.tile_begin(tile + 1) - row;
      const auto* x = static_cast<const typename Rows::Word*>(block.panel);
      multiply_any<Rows>(rows, x + row * args.groups * Rows::kGroupWords, blocks, args.groups,
                         sums);
      visit_float_dtype(args.dtype, [&](auto element) {
        store_sums<decltype(element)>(args, block.first + row, rows, first,
                                      static_cast<int>(stop - first), sums);
      });
    }
  }
}

}  // namespace

const Int8LinearKernels kInt8LinearKernels = {FloatRows::kMaxRows, FloatRows::kGroupWords, pack,
                                              multiply<FloatRows>};
const Int8LinearKernels kW8A8Int8LinearKernels = {
    QuantizedRows::kMaxRows, QuantizedRows::kGroupWords, quantize, multiply<QuantizedRows>};

}  // namespace rtp_llm::cpu::RTP_LLM_INT8_ISA
