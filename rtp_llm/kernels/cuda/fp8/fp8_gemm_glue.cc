#include "rtp_llm/kernels/common/fp8/fp8_activation_checks.h"
#include "rtp_llm/kernels/common/fp8/fp8_gemm_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_activation.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

constexpr int64_t kSwappedRows = 64;  // when the caller leaves it open

void limit(Fp8GemmArgs& args, int64_t num_sms, std::optional<bool> swap_ab, int64_t rows) {
  RTP_LLM_CHECK(num_sms == -1 || num_sms > 0, "fp8_gemm: num_sms is ", num_sms,
                "; expected -1 for all, or at least 1");
  args.num_sms = static_cast<int>(num_sms < INT32_MAX ? num_sms : INT32_MAX);
  args.swap_ab = swap_ab.value_or(rows <= kSwappedRows);
  args.expected_rows = rows;
}

Tensor multiplied(Fp8GemmArgs& args, const Tensor& q) {
  Tensor out = glue::fp8_gemm_result(args, q);
  const OnDevice device(q);
  fp8_gemm(args, device.stream());
  return out;
}

Tensor fp8_linear(const Tensor& q, const Tensor& scales, const Tensor& weight,
                  const Tensor& weight_scales, int64_t num_sms, std::optional<bool> swap_ab) {
  Fp8GemmArgs args =
      glue::fp8_gemm_args({q, scales, weight, weight_scales}, Fp8Form::kPlain, nullptr);
  limit(args, num_sms, swap_ab, args.rows);
  return multiplied(args, q);
}

// The rows that a group has as a rule: what the caller expects, cut off at what there are.
int64_t expected_rows(const Fp8GemmArgs& args, int64_t expected_m) {
  return expected_m > 0 && expected_m < args.rows ? expected_m : args.rows;
}

Fp8GemmArgs masked_args(const glue::Fp8Operands& operands, const Tensor& masked_m,
                        int64_t expected_m, int64_t num_sms, std::optional<bool> swap_ab) {
  Fp8GemmArgs args = glue::fp8_gemm_args(operands, Fp8Form::kMasked, &masked_m);
  limit(args, num_sms, swap_ab, expected_rows(args, expected_m));
  return args;
}

Tensor fp8_grouped_masked(const Tensor& q, const Tensor& scales, const Tensor& weight,
                          const Tensor& weight_scales, const Tensor& masked_m, int64_t expected_m,
                          int64_t num_sms, std::optional<bool> swap_ab) {
  Fp8GemmArgs args =
      masked_args({q, scales, weight, weight_scales}, masked_m, expected_m, num_sms, swap_ab);
  return multiplied(args, q);
}

Tensor fp8_grouped_ragged(const Tensor& q, const Tensor& scales, const Tensor& weight,
                          const Tensor& weight_scales, const Tensor& starts, const Tensor& counts,
                          int64_t expected_m, int64_t num_sms, std::optional<bool> swap_ab) {
  Fp8GemmArgs args =
      glue::fp8_gemm_args({q, scales, weight, weight_scales}, Fp8Form::kRagged, &counts);
  glue::check_index(starts, "fp8_gemm: starts");
  glue::check_sizes(starts, {args.groups + 1}, "fp8_gemm: starts");
  args.starts = starts.data<int32_t>();
  limit(args, num_sms, swap_ab, expected_rows(args, expected_m));
  return multiplied(args, q);
}

Tensor fp8_grouped_contiguous(const Tensor& q, const Tensor& scales, const Tensor& weight,
                              const Tensor& weight_scales, const Tensor& m_indices,
                              int64_t num_sms) {
  Fp8GemmArgs args =
      glue::fp8_gemm_args({q, scales, weight, weight_scales}, Fp8Form::kContiguous, &m_indices);
  limit(args, num_sms, false, args.rows);
  return multiplied(args, q);
}

Tensor deep_gemm_fp8(const Tensor& lhs, const Tensor& rhs_data, const Tensor& rhs_scale,
                     int64_t num_sms, std::optional<bool> swap_ab) {
  glue::check_dim(lhs, 2, "deep_gemm_fp8: lhs");
  const glue::Fp8Activation x =
      glue::fp8_activation(lhs, std::nullopt, false, "deep_gemm_fp8: lhs");
  Fp8GemmArgs args =
      glue::fp8_gemm_args({x.q, x.scales, rhs_data, rhs_scale}, Fp8Form::kPlain, nullptr);
  limit(args, num_sms, swap_ab, args.rows);
  Tensor out = glue::fp8_gemm_result(args, lhs);
  const OnDevice device(lhs);
  fp8_activation(x.args, device.stream());
  fp8_gemm(args, device.stream());
  return out;
}

void deep_gemm_grouped_fp8_masked(const Tensor& lhs, const Tensor& rhs_data,
                                  const Tensor& rhs_scale, const Tensor& output,
                                  const Tensor& masked_m, int64_t expected_m, int64_t num_sms,
                                  const OptionalTensor& lhs_scale, std::optional<bool> swap_ab) {
  constexpr const char* kWhat = "deep_gemm_grouped_fp8_masked: lhs";
  const bool quantized = lhs.dtype() == DType::kFloat8E4m3fn;
  RTP_LLM_CHECK(quantized == lhs_scale.has_value(), kWhat, " is ", lhs.describe(),
                quantized ? "; lhs_scale is missing" : "; lhs_scale belongs to e4m3 only");
  glue::check_dim(lhs, 3, kWhat);
  const OnDevice device(lhs);
  std::optional<glue::Fp8Activation> x;
  if (!quantized) {
    x.emplace(glue::fp8_activation(lhs, std::nullopt, false, kWhat));
    glue::check_index(masked_m, "masked_m");
    glue::check_sizes(masked_m, {lhs.size(0)}, "masked_m");
    x->args.masked_m = masked_m.data<int32_t>();
  }
  Fp8GemmArgs args =
      masked_args({quantized ? lhs : x->q, quantized ? *lhs_scale : x->scales, rhs_data, rhs_scale},
                  masked_m, expected_m, num_sms, swap_ab);
  glue::set_out(args, output);
  if (!quantized) fp8_activation(x->args, device.stream());
  fp8_gemm(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<fp8_linear>(library, "fp8_linear");
  glue::implement<fp8_grouped_masked>(library, "fp8_grouped_masked");
  glue::implement<fp8_grouped_contiguous>(library, "fp8_grouped_contiguous");
  glue::implement<fp8_grouped_ragged>(library, "fp8_grouped_ragged");
  glue::implement<deep_gemm_fp8>(library, "deep_gemm_fp8");
  glue::implement<deep_gemm_grouped_fp8_masked>(library, "deep_gemm_grouped_fp8_masked");
}

}  // namespace rtp_llm::cuda
