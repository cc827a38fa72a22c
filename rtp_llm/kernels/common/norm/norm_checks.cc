#include "rtp_llm/kernels/common/norm/norm_checks.h"

namespace rtp_llm::glue {
namespace {

void check_weight(const Tensor& weight, const Tensor& x, int64_t size, const char* what) {
  check_dtype(weight, x.dtype(), what);
  check_sizes(weight, {size}, what);
  check_contiguous(weight, what);
}

}  // namespace

RmsNormArgs rms_norm_args(const Tensor& x, const Tensor& weight, double eps) {
  check_float_dtype(x, "rms_norm: x");
  const Rows rows = rows_of(x, "rms_norm: x");
  check_weight(weight, x, rows.size, "rms_norm: weight");
  return {x.data(),  weight.data(),          nullptr, rows.count, rows.size, rows.stride, rows.size,
          x.dtype(), static_cast<float>(eps)};
}

AddRmsNormArgs add_rms_norm_args(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 double eps) {
  check_float_dtype(x, "fused_add_rms_norm: x");
  check_dtype(residual, x.dtype(), "fused_add_rms_norm: residual");
  check_same_sizes(residual, x, "fused_add_rms_norm: residual");
  const Rows rows = rows_of(x, "fused_add_rms_norm: x");
  const Rows residual_rows = rows_of(residual, "fused_add_rms_norm: residual");
  check_weight(weight, x, rows.size, "fused_add_rms_norm: weight");
  RTP_LLM_CHECK(x.data() != residual.data() || x.numel() == 0,
                "fused_add_rms_norm: x and residual are the same memory");
  return {x.data(),
          residual.data(),
          weight.data(),
          rows.count,
          rows.size,
          rows.stride,
          residual_rows.stride,
          x.dtype(),
          static_cast<float>(eps)};
}

QkRmsNormArgs qk_rms_norm_args(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                               int64_t num_heads, int64_t num_kv_heads, double eps) {
  check_float_dtype(qkv, "qk_rms_norm: qkv");
  check_dim(qkv, 2, "qk_rms_norm: qkv");
  const Rows rows = rows_of(qkv, "qk_rms_norm: qkv");
  const int64_t heads = num_heads + 2 * num_kv_heads;
  RTP_LLM_CHECK(num_heads > 0 && num_kv_heads > 0 && rows.size % heads == 0, "qk_rms_norm: qkv is ",
                qkv.describe(), "; expected rows of ", num_heads, " + 2 * ", num_kv_heads,
                " heads");
  const int64_t head_dim = rows.size / heads;
  check_weight(q_weight, qkv, head_dim, "qk_rms_norm: q_weight");
  check_weight(k_weight, qkv, head_dim, "qk_rms_norm: k_weight");
  return {qkv.data(),   q_weight.data(), k_weight.data(), rows.count,  num_heads,
          num_kv_heads, head_dim,        rows.stride,     qkv.dtype(), static_cast<float>(eps)};
}

}  // namespace rtp_llm::glue
