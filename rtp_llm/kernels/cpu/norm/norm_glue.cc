#include "rtp_llm/kernels/common/norm/norm_checks.h"
#include "rtp_llm/kernels/cpu/norm/norm.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  RmsNormArgs args = glue::rms_norm_args(x, weight, eps);
  Tensor out = glue::empty_like(x);
  args.out = out.data();
  glue::run(RTP_LLM_PICK_ISA(rms_norm), args, args.rows, grain_rows(args.size * 8));
  return out;
}

void fused_add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  const AddRmsNormArgs args = glue::add_rms_norm_args(x, residual, weight, eps);
  glue::run(RTP_LLM_PICK_ISA(add_rms_norm), args, args.rows, grain_rows(args.size * 12));
}

void qk_rms_norm(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                 int64_t num_heads, int64_t num_kv_heads, double eps) {
  const QkRmsNormArgs args =
      glue::qk_rms_norm_args(qkv, q_weight, k_weight, num_heads, num_kv_heads, eps);
  glue::run(RTP_LLM_PICK_ISA(qk_rms_norm), args, args.tokens, grain_rows(qkv.size(1) * 8));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<rms_norm>(library, "rms_norm");
  glue::implement<fused_add_rms_norm>(library, "fused_add_rms_norm");
  glue::implement<qk_rms_norm>(library, "qk_rms_norm");
}

}  // namespace rtp_llm::cpu
