// SPDX-License-Identifier: Apache-2.0
// What products with weights in a few bits have in common: rows of x, where results go, and how
// groups share them. The weight of each format is a struct that tells it to the kernel
// (weight_product_kernel.h).
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// What a group computes: so many rows of x by so many rows of the weight, each shared out over
// lanes, which take turns with steps of columns.
constexpr int kWeightTokens = 8;
constexpr int kWeightRows = 16;
constexpr int kWeightLanes = 16;
constexpr int kWeightStep = 32;  // columns that an item dequantises in registers
constexpr int kWeightItems = kWeightRows * kWeightLanes;

// out[r] = x[r, order] weight[e]^T + bias[e] for offsets[e] <= r < offsets[e + 1]. Strides are in
// elements.
struct WeightRows {
  const void* x;           // [rows, k]
  const void* bias;        // [experts, n], rows bias_stride apart, or null
  void* out;               // [rows, n], contiguous
  const int32_t* offsets;  // [experts + 1], or null: all rows are of one expert
  const int32_t* order;    // [columns]: where in x a column is, -1 for zeros; or null
  int64_t rows, n, k, x_stride, bias_stride, experts;
  int64_t columns;    // of the weight: whole steps, or k
  int rounded;        // columns of x that become 8 bits with one scale: 32, 64, or 0 for none
  bool float_result;  // out is float32 whatever x is
};

constexpr int64_t weight_groups(const WeightRows& rows) {
  return (rows.rows + kWeightTokens - 1) / kWeightTokens *
         ((rows.n + kWeightRows - 1) / kWeightRows);
}

template <class Weight>
struct WeightProduct {
  WeightRows rows;
  Weight weight;
};

}  // namespace rtp_llm::xpu
