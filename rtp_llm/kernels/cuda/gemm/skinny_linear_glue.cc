#include "rtp_llm/kernels/common/norm/norm_checks.h"
#include "rtp_llm/kernels/common/gemm/skinny_linear_checks.h"
#include "rtp_llm/kernels/common/gemm/torch_linear.h"
#include "rtp_llm/kernels/cuda/norm/norm.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/gemm/skinny_linear.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

constexpr glue::SkinnyLimits kLimits = {kSkinnyRows, kSkinnyColumns, kSkinnyOutputs};

Tensor result_of(SkinnyLinearArgs& args, const Tensor& x, int64_t columns, DType dtype) {
  Tensor out = glue::empty(x, {args.rows, columns}, dtype);
  args.out = out.data();
  args.out_stride = columns;
  return out;
}

int64_t fused_linear_rows(const Tensor& weight) {
  glue::check_dim(weight, 2, "fused_linear_rows: weight");
  const OnDevice device(weight);
  return skinny_linear_rows(weight.size(0), weight.size(1), weight.dtype());
}

void linear_add(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                const Tensor& residual) {
  SkinnyLinearArgs args = glue::skinny_linear_args(x, weight, bias, kLimits);
  glue::set_residual(args, x, residual);
  const OnDevice device(x);
  skinny_linear(args, device.stream());
}

// Norms inside the kernel where it can, else before it; x is kept as long as the kernel is not
// launched.
void norm_and_run(SkinnyLinearArgs& args, const Tensor& x, const Tensor& norm_weight, double eps) {
  const OnDevice device(x);
  if (args.dtype == DType::kBFloat16) {
    glue::set_norm(args, x, norm_weight, eps);
    return skinny_linear(args, device.stream());
  }
  RmsNormArgs norm = glue::rms_norm_args(x, norm_weight, eps);
  const Tensor normed = glue::empty_like(x);
  norm.out = normed.data();
  rms_norm(norm, device.stream());
  args.x = normed.data();
  args.x_stride = args.columns;
  skinny_linear(args, device.stream());
}

Tensor norm_linear(const Tensor& x, const Tensor& norm_weight, double eps, const Tensor& weight,
                   const OptionalTensor& bias) {
  SkinnyLinearArgs args = glue::skinny_linear_args(x, weight, bias, kLimits);
  args.end = LinearEnd::kStore;
  Tensor out = result_of(args, x, args.outputs, args.dtype);
  norm_and_run(args, x, norm_weight, eps);
  return out;
}

Tensor norm_gated_linear(const Tensor& x, const Tensor& norm_weight, double eps,
                         const Tensor& weight, const OptionalTensor& bias, std::string activation) {
  SkinnyLinearArgs args = glue::skinny_linear_args(x, weight, bias, kLimits);
  args.end = LinearEnd::kGate;
  args.activation = glue::activation_named(activation);
  Tensor out = result_of(args, x, args.outputs / 2, args.dtype);
  norm_and_run(args, x, norm_weight, eps);
  return out;
}

bool rows_aligned(const Tensor& matrix) {
  constexpr uintptr_t kAccessBytes = 16;
  const int64_t stride_bytes = matrix.stride(0) * element_size(matrix.dtype());
  return (reinterpret_cast<uintptr_t>(matrix.data()) | static_cast<uintptr_t>(stride_bytes)) %
             kAccessBytes ==
         0;
}

bool takes(const Tensor& x, const Tensor& weight) {
  return x.dim() == 2 && weight.dim() == 2 && rows_aligned(x) && rows_aligned(weight) &&
         x.size(0) <= skinny_linear_rows(weight.size(0), weight.size(1), weight.dtype());
}

Tensor linear_float(const Tensor& x, const Tensor& weight) {
  if (!takes(x, weight)) return glue::torch_float_linear(x, weight);
  SkinnyLinearArgs args = glue::skinny_linear_args(x, weight, std::nullopt, kLimits);
  args.end = LinearEnd::kFloat;
  Tensor out = result_of(args, x, args.outputs, DType::kFloat32);
  const OnDevice device(x);
  skinny_linear(args, device.stream());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement_uncounted<fused_linear_rows>(library, "fused_linear_rows");
  glue::implement<linear_add>(library, "linear_add");
  glue::implement<norm_linear>(library, "norm_linear");
  glue::implement<norm_gated_linear>(library, "norm_gated_linear");
  glue::implement<linear_float>(library, "linear_float");
}

}  // namespace rtp_llm::cuda
