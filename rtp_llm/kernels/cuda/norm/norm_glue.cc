#include "rtp_llm/kernels/common/norm/norm_checks.h"
#include "rtp_llm/kernels/cuda/norm/norm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor rms_norm_rows(const Tensor& x, const Tensor& weight, double eps) {
  RmsNormArgs args = glue::rms_norm_args(x, weight, eps);
  Tensor out = glue::empty_like(x);
  args.out = out.data();
  const OnDevice device(x);
  rms_norm(args, device.stream());
  return out;
}

void fused_add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  const AddRmsNormArgs args = glue::add_rms_norm_args(x, residual, weight, eps);
  const OnDevice device(x);
  add_rms_norm(args, device.stream());
}

void qk_rms_norm_packed(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                        int64_t num_heads, int64_t num_kv_heads, double eps) {
  const QkRmsNormArgs args =
      glue::qk_rms_norm_args(qkv, q_weight, k_weight, num_heads, num_kv_heads, eps);
  const OnDevice device(qkv);
  qk_rms_norm(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<rms_norm_rows>(library, "rms_norm");
  glue::implement<fused_add_rms_norm>(library, "fused_add_rms_norm");
  glue::implement<qk_rms_norm_packed>(library, "qk_rms_norm");
}

}  // namespace rtp_llm::cuda
