#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/norm.h"

namespace rtp_llm::cpu {
namespace {

using glue::Rows;
using glue::Tensor;

void check_weight(const Tensor& weight, const Tensor& x, int64_t size, const char* what) {
  glue::check_dtype(weight, x.dtype(), what);
  glue::check_sizes(weight, {size}, what);
  glue::check_contiguous(weight, what);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  glue::check_float_dtype(x, "rms_norm: x");
  const Rows rows = glue::rows_of(x, "rms_norm: x");
  check_weight(weight, x, rows.size, "rms_norm: weight");
  Tensor out = glue::empty_like(x);
  const RmsNormArgs args{x.data(),    weight.data(), out.data(), rows.size,
                         rows.stride, rows.size,     x.dtype(),  static_cast<float>(eps)};
  glue::run(RTP_LLM_PICK_ISA(rms_norm), args, rows.count, grain_rows(rows.size * 8));
  return out;
}

void fused_add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  glue::check_float_dtype(x, "fused_add_rms_norm: x");
  glue::check_dtype(residual, x.dtype(), "fused_add_rms_norm: residual");
  glue::check_same_sizes(residual, x, "fused_add_rms_norm: residual");
  const Rows rows = glue::rows_of(x, "fused_add_rms_norm: x");
  const Rows residual_rows = glue::rows_of(residual, "fused_add_rms_norm: residual");
  check_weight(weight, x, rows.size, "fused_add_rms_norm: weight");
  RTP_LLM_CHECK(x.data() != residual.data() || x.numel() == 0,
                "fused_add_rms_norm: x and residual are the same memory");
  const AddRmsNormArgs args{
      x.data(),    residual.data(),      weight.data(), rows.size,
      rows.stride, residual_rows.stride, x.dtype(),     static_cast<float>(eps)};
  glue::run(RTP_LLM_PICK_ISA(add_rms_norm), args, rows.count, grain_rows(rows.size * 12));
}

void qk_rms_norm(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                 int64_t num_heads, int64_t num_kv_heads, double eps) {
  glue::check_float_dtype(qkv, "qk_rms_norm: qkv");
  glue::check_dim(qkv, 2, "qk_rms_norm: qkv");
  const Rows rows = glue::rows_of(qkv, "qk_rms_norm: qkv");
  const int64_t heads = num_heads + 2 * num_kv_heads;
  RTP_LLM_CHECK(num_heads > 0 && num_kv_heads > 0 && rows.size % heads == 0, "qk_rms_norm: qkv is ",
                qkv.describe(), "; expected rows of ", num_heads, " + 2 * ", num_kv_heads,
                " heads");
  const int64_t head_dim = rows.size / heads;
  check_weight(q_weight, qkv, head_dim, "qk_rms_norm: q_weight");
  check_weight(k_weight, qkv, head_dim, "qk_rms_norm: k_weight");
  const QkRmsNormArgs args{qkv.data(),  q_weight.data(), k_weight.data(),
                           num_heads,   num_kv_heads,    head_dim,
                           rows.stride, qkv.dtype(),     static_cast<float>(eps)};
  glue::run(RTP_LLM_PICK_ISA(qk_rms_norm), args, rows.count, grain_rows(rows.size * 8));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<rms_norm>(library, "rms_norm");
  glue::implement<fused_add_rms_norm>(library, "fused_add_rms_norm");
  glue::implement<qk_rms_norm>(library, "qk_rms_norm");
}

}  // namespace rtp_llm::cpu
