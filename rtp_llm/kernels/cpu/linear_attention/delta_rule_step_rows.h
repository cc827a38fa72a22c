// SPDX-License-Identifier: Apache-2.0
// Products of some rows of a state with the keys and queries of a step.
#pragma once

#include "rtp_llm/kernels/cpu/linear_attention/delta_rule_memory.h"
#include "rtp_llm/kernels/cpu/vec_product.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// Rows of a state whose products fill a vector, and how many of them are in registers at a time.
constexpr int kGroup = kWidth;
constexpr int kRowsAtOnce = kWidth < 4 ? kWidth : 4;

constexpr int64_t kPrefetchRows = 16;

// sums[x * kGroup + r] = the products, lane by lane, of row r and vector x.
template <int kRows, int kVectors, class From>
inline void multiply_rows(const From* rows, int64_t row_stride, const float* vectors,
                          int64_t stride, int64_t size, Vec* sums) {
  // The processor itself fetches what follows within a page only.
  const int64_t ahead = kPrefetchRows * row_stride;
  Vec sum[kVectors][kRows];
#pragma GCC unroll 4
  for (int x = 0; x < kVectors; ++x) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[x][r] = Vec::zero();
  }
  for_vectors(size, [&](int64_t i, int count) {
    Vec right[kVectors];
#pragma GCC unroll 4
    for (int x = 0; x < kVectors; ++x) right[x] = Vec::load(vectors + x * stride + i, count);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec left = Vec::load(rows + r * row_stride + i, count);
      __builtin_prefetch(rows + r * row_stride + i + ahead);
#pragma GCC unroll 4
      for (int x = 0; x < kVectors; ++x) sum[x][r] = fma(left, right[x], sum[x][r]);
    }
  });
#pragma GCC unroll 4
  for (int x = 0; x < kVectors; ++x) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[x * kGroup + r] = sum[x][r];
  }
}

// Some rows of a matrix.
template <class From>
struct RowGroup {
  const From* rows;
  int64_t stride;
  int count;  // at most kGroup
};

// products[x], lane r: row r times vector x, of an even number of vectors. Beyond the rows: zeros.
template <class From>
inline void multiply_group(const RowGroup<From>& group, const float* vectors, int64_t stride,
                           int64_t num_vectors, int64_t size, Vec* products) {
  // Two vectors and four rows: the sums and what they are made of fit into 16 registers.
  constexpr int kVectors = 2;
  for (int64_t x = 0; x < num_vectors; x += kVectors) {
    Vec sums[kVectors * kGroup];
    const float* right = vectors + x * stride;
    const From* row = group.rows;
    int r = 0;
    for (; r + kRowsAtOnce <= group.count; r += kRowsAtOnce, row += kRowsAtOnce * group.stride) {
      multiply_rows<kRowsAtOnce, kVectors>(row, group.stride, right, stride, size, sums + r);
    }
    for (; r < group.count; ++r, row += group.stride) {
      multiply_rows<1, kVectors>(row, group.stride, right, stride, size, sums + r);
    }
    for (; r < kGroup; ++r) {
      for (int i = 0; i < kVectors; ++i) sums[i * kGroup + r] = Vec::zero();
    }
    for (int i = 0; i < kVectors; ++i) products[x + i] = sum_each(sums + i * kGroup);
  }
}

// What a fold adds to the rows of a state: each is scaled by `decay`, then row r gets weights[r, j]
// times key j.
struct Fold {
  float decay;
  const float* keys;     // [count, stride]
  const float* weights;  // [kGroup, weight_stride]
  int64_t stride, weight_stride, count;
};

// From rows `from` (none: zeros) of `size` to rows `to` [.., fold.stride] in float32, and to the
// state `kept`.
template <class State>
inline void fold_rows(const Fold& fold, const State* from, int num_rows, int64_t size, float* to,
                      State* kept) {
  const Vec decay = Vec::set(fold.decay);
  for (int r = 0; r < num_rows; ++r) {
    for_vectors(size, [&](int64_t i, int lanes) {
      const Vec old = from == nullptr ? Vec::zero() : Vec::load(from + r * size + i, lanes) * decay;
      old.store(to + r * fold.stride + i);
    });
  }
  if (fold.count > 0) {
    const auto stride = static_cast<int>(fold.stride);
    product<false>({fold.weights, fold.keys, to, static_cast<int>(fold.weight_stride), stride,
                    stride, static_cast<int>(fold.count), true},
                   num_rows, static_cast<int>(size));
  }
  for (int r = 0; r < num_rows; ++r) convert(to + r * fold.stride, kept + r * size, size);
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
