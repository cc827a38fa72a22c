// Root-mean-square norms: norm(x) = x / sqrt(mean(x^2) + eps) * weight. Sums and products are
// float32, whatever the element type. Strides are in elements.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm::cpu {

// out[r] = norm(x[r]), rows of `size` elements.
struct RmsNormArgs {
  const void* x;
  const void* weight;
  void* out;
  int64_t size;
  int64_t x_stride;
  int64_t out_stride;
  DType dtype;
  float eps;
};

// residual[r] += x[r], rounded to the element type; then x[r] = norm(residual[r]).
struct AddRmsNormArgs {
  void* x;
  void* residual;
  const void* weight;
  int64_t size;
  int64_t x_stride;
  int64_t residual_stride;
  DType dtype;
  float eps;
};

// Rows are tokens of num_heads query heads, num_kv_heads key heads and as many value heads; each
// query and key head is replaced by its norm.
struct QkRmsNormArgs {
  void* qkv;
  const void* q_weight;
  const void* k_weight;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t stride;
  DType dtype;
  float eps;
};

RTP_LLM_FOR_EACH_ISA(void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end);
                     void add_rms_norm(const AddRmsNormArgs& args, int64_t begin, int64_t end);
                     void qk_rms_norm(const QkRmsNormArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu
