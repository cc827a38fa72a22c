// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: everything that linear.cc calls.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/cpu/gemm/linear_tile.h"

namespace rtp_llm::cpu::RTP_LLM_TILE_ISA {
namespace {

template <class T>
using FormatOf =
    std::conditional_t<kHasDotBFloat16 && std::is_same_v<T, BFloat16>, PairFormat, FloatFormat<T>>;
template <class T>
using PanelOf = typename FormatOf<T>::Panel;

template <class T>
int64_t padded_k(const LinearArgs& args) {
  constexpr int kStep = FormatOf<T>::kStep;
  return (args.k + kStep - 1) / kStep * kStep;
}

// A row in the panel's element type, `step` elements from one vector to the next.
template <class T>
void pack_row(const T* x, int64_t k, int step, PanelOf<T>* panel) {
  constexpr int kStep = FormatOf<T>::kStep;
  for (int64_t c = 0; c < k; c += kStep, panel += step) {
    const Vec elements = c + kStep <= k ? FormatOf<T>::load(x + c)
                                        : FormatOf<T>::load(x + c, static_cast<int>(k - c));
    elements.store(reinterpret_cast<float*>(panel));
  }
}

template <class T>
void pack_tiles(const LinearArgs& args, const LinearBlock& block) {
  constexpr int kStep = FormatOf<T>::kStep;
  for (int tile = 0; tile < block.tiles; ++tile) {
    const int begin = block.tile_begin(tile);
    const int rows = block.tile_begin(tile + 1) - begin;
    PanelOf<T>* panel = static_cast<PanelOf<T>*>(block.panel) + begin * padded_k<T>(args);
    const T* x = static_cast<const T*>(args.x) + (block.first + begin) * args.x_stride;
    for (int i = 0; i < rows; ++i) {
      pack_row(x + i * args.x_stride, args.k, rows * kStep, panel + i * kStep);
    }
  }
}

// Past the end, the last row is repeated.
template <class T>
WeightGroup<T> weight_group(const LinearArgs& args, int64_t first) {
  WeightGroup<T> group;
  for (int j = 0; j < kGroupRows; ++j) {
    const int64_t row = first + j < args.n ? first + j : args.n - 1;
    group.rows[j] = static_cast<const T*>(args.weight) + row * args.weight_stride;
  }
  group.k = args.k;
  group.next = args.weight_stride * kGroupRows;
  return group;
}

// Completes the sums of a tile: out[row + i, first + j] for all rows i and the first `count` j.
template <class T>
void store_sums(const LinearArgs& args, int64_t row, int rows, int64_t first, int count,
                const Vec* sums) {
  alignas(64) float results[kMaxRows * kGroupRows + kWidth];
  for (int i = 0; i < rows * kGroupRows; i += kWidth) sum_each(sums + i).store(results + i);
  const T* bias = args.bias == nullptr ? nullptr : static_cast<const T*>(args.bias) + first;
  T* out = static_cast<T*>(args.out) + row * args.out_stride + first;
  for (int i = 0; i < rows; ++i, out += args.out_stride) {
    const float* result = results + i * kGroupRows;
    for_vectors(count, [&](int64_t j, int lanes) {
      Vec y = Vec::load(result + j, lanes);
      if (bias != nullptr) y = y + Vec::load(bias + j, lanes);
      y.store(out + j, lanes);
    });
  }
}

// Calls multiply_rows for a height that is known at run time only.
template <class Format, int kRows = kMaxRows>
void multiply_any(int rows, const typename Format::Panel* x,
                  const WeightGroup<typename Format::Weight>& group, Vec* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_rows<Format, kRows>(x, group, sums);
    multiply_any<Format, kRows - 1>(rows, x, group, sums);
  }
}

template <class T>
void multiply_groups(const LinearArgs& args, const LinearBlock& block, int64_t begin, int64_t end) {
  // A whole number of vectors, of which the last may not be all written.
  Vec sums[kMaxRows * kGroupRows + kWidth];
  for (Vec& sum : sums) sum = Vec::zero();
  for (int64_t first = begin * kGroupRows; first < end * kGroupRows; first += kGroupRows) {
    const WeightGroup<T> group = weight_group<T>(args, first);
    const int64_t rest = args.n - first;
    const int count = rest < kGroupRows ? static_cast<int>(rest) : kGroupRows;
    for (int tile = 0; tile < block.tiles; ++tile) {
      const int row = block.tile_begin(tile);
      const int rows = block.tile_begin(tile + 1) - row;
      const auto* panel = static_cast<const PanelOf<T>*>(block.panel) + row * padded_k<T>(args);
      multiply_any<FormatOf<T>>(rows, panel, group, sums);
      store_sums<T>(args, block.first + row, rows, first, count, sums);
    }
  }
}

int64_t panel_row_bytes(const LinearArgs& args) {
  int64_t bytes = 0;
  visit_tile_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    bytes = padded_k<T>(args) * static_cast<int64_t>(sizeof(PanelOf<T>));
  });
  return bytes;
}

void pack(const LinearArgs& args, const LinearBlock& block) {
  visit_tile_dtype(args.dtype, [&](auto element) { pack_tiles<decltype(element)>(args, block); });
}

void multiply(const LinearArgs& args, const LinearBlock& block, int64_t first, int64_t last) {
  visit_tile_dtype(args.dtype, [&](auto element) {
    multiply_groups<decltype(element)>(args, block, first, last);
  });
}

}  // namespace

const LinearKernels kLinearKernels = {kMaxRows, kGroupRows, panel_row_bytes, pack, multiply};

}  // namespace rtp_llm::cpu::RTP_LLM_TILE_ISA
