// SPDX-License-Identifier: Apache-2.0
// Arguments of linear layers of few rows with what surrounds them. Sums are float32. Strides are in
// elements; every row begins at a multiple of 16 bytes.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// What becomes of the sums y = x @ weight.T + bias.
enum class LinearEnd : int8_t {
  kStore,  // out = y
  kAdd,    // out += y
  kGate,   // out = activation(first half of y) * second half
  kFloat,  // out = y in float32
};

struct SkinnyLinearArgs {
  const void* x;            // [rows, columns]
  const void* weight;       // [outputs, columns]
  const void* bias;         // [outputs], or null
  const void* norm_weight;  // [columns], or null: x is first normed (root mean square)
  void* out;                // [rows, outputs], of kGate half as many
  int64_t rows;
  int64_t columns;
  int64_t outputs;
  int64_t x_stride;
  int64_t weight_stride;
  int64_t out_stride;
  DType dtype;
  float eps;
  float norm_offset;  // added to norm_weight
  LinearEnd end;
  Activation activation;  // of kGate
};
using GatedLinearArgs = SkinnyLinearArgs;
using LinearAddArgs = SkinnyLinearArgs;
using NormLinearArgs = SkinnyLinearArgs;
using NormGatedLinearArgs = SkinnyLinearArgs;

}  // namespace rtp_llm
