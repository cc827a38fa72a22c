// SPDX-License-Identifier: Apache-2.0
// Arguments of the root-mean-square norms, norm(x) = x / sqrt(mean(x^2) + eps) * (weight + offset),
// and of the layer norms, layer_norm(x) = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.
// Sums and products are float32, whatever the element type. Strides are in elements.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// out[r] = norm(x[r]), rows of `size` elements.
struct RmsNormArgs {
  const void* x;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t size;
  int64_t x_stride;
  int64_t out_stride;
  DType dtype;
  float eps;
  float offset;
};

// residual[r] += x[r], rounded to the element type; then x[r] = norm(residual[r]).
struct FusedAddRmsNormArgs {
  void* x;
  void* residual;
  const void* weight;
  int64_t rows;
  int64_t size;
  int64_t x_stride;
  int64_t residual_stride;
  DType dtype;
  float eps;
  float offset;
};

// Rows are tokens of num_heads query heads, num_kv_heads key heads and as many value heads; each
// query and key head is replaced by its norm.
struct QkRmsNormArgs {
  void* qkv;
  const void* q_weight;
  const void* k_weight;
  int64_t tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t stride;
  DType dtype;
  float eps;
  float offset;
};

// out[r] = norm(x[r]) * silu(gate[r]), without an offset; row r is the (r % inner)th of group r /
// inner.
struct GatedRmsNormArgs {
  const void* x;
  const void* gate;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t size;
  int64_t inner;
  int64_t x_stride;  // of rows in a group
  int64_t x_group_stride;
  int64_t gate_stride;
  int64_t gate_group_stride;
  DType dtype;
  float eps;
};

// out[r] = layer_norm(x[r]).
struct LayerNormArgs {
  const void* x;
  const void* weight;
  const void* bias;  // or null
  void* out;
  int64_t rows;
  int64_t size;
  int64_t x_stride;
  int64_t out_stride;
  DType dtype;
  float eps;
};

// residual[r] += x[r], rounded to the element type; then x[r] = layer_norm(residual[r]).
struct FusedAddLayerNormArgs {
  void* x;
  void* residual;
  const void* weight;
  const void* bias;  // or null
  int64_t rows;
  int64_t size;
  int64_t x_stride;
  int64_t residual_stride;
  DType dtype;
  float eps;
};

}  // namespace rtp_llm
