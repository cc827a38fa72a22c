// SPDX-License-Identifier: Apache-2.0
// Arguments of gates. Of the output of attention: x[r] *= sigmoid(gate[r]), in float32. Row r is
// the (r % inner)th of group r / inner; strides are in elements.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

struct SigmoidGateArgs {
  void* x;
  const void* gate;
  int64_t rows;
  int64_t size;
  int64_t inner;
  int64_t x_stride;  // of rows in a group
  int64_t x_group_stride;
  int64_t gate_stride;
  int64_t gate_group_stride;
  DType dtype;

  // Rows of a matrix are one group: 64-bit divisions take a GPU long.
  constexpr int64_t x_at(int64_t row) const {
    if (row < inner) return row * x_stride;
    return row / inner * x_group_stride + row % inner * x_stride;
  }
  constexpr int64_t gate_at(int64_t row) const {
    if (row < inner) return row * gate_stride;
    return row / inner * gate_group_stride + row % inner * gate_stride;
  }
};

// For shared experts: out[r] += y[r] * sigmoid(x[r] . gate), with contiguous rows.
struct AddSigmoidGatedArgs {
  void* out;
  const void* y;
  const void* x;
  const void* gate;
  int64_t rows;
  int64_t size;   // of a row of out and y
  int64_t depth;  // of a row of x
  DType dtype;
};

}  // namespace rtp_llm
