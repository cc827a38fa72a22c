// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/skinny_linear_checks.h"

#include "rtp_llm/kernels/common/gemm/calls.h"

namespace rtp_llm::glue {
namespace {

constexpr uintptr_t kAccessBytes = 16;

// A matrix whose rows begin at multiples of an access.
void check_matrix(const Tensor& matrix, const char* what) {
  check_dim(matrix, 2, what);
  check_contiguous_rows(matrix, what);
  const auto bytes = static_cast<uintptr_t>(element_size(matrix.dtype()));
  const bool aligned = reinterpret_cast<uintptr_t>(matrix.data()) % kAccessBytes == 0 &&
                       static_cast<uintptr_t>(matrix.stride(0)) * bytes % kAccessBytes == 0;
  RTP_LLM_CHECK(aligned || matrix.numel() == 0, what, " is ", matrix.describe(),
                " with a row stride of ", matrix.stride(0),
                "; expected rows at multiples of 16 bytes");
}

}  // namespace

void set_linear_norm(SkinnyLinearArgs& args, const Tensor& x, const Tensor& norm_weight, double eps,
                     double offset) {
  check_dtype(norm_weight, x.dtype(), "fused linear: norm_weight");
  check_sizes(norm_weight, {x.size(1)}, "fused linear: norm_weight");
  check_contiguous(norm_weight, "fused linear: norm_weight");
  // A kernel of its own norms float16, and reads any address.
  RTP_LLM_CHECK(args.dtype == DType::kFloat16 ||
                    reinterpret_cast<uintptr_t>(norm_weight.data()) % kAccessBytes == 0,
                "fused linear: norm_weight does not begin at a multiple of 16 bytes");
  args.norm_weight = norm_weight.data();
  args.eps = static_cast<float>(eps);
  args.norm_offset = static_cast<float>(offset);
}

void set_linear_residual(SkinnyLinearArgs& args, const Tensor& x, const Tensor& residual) {
  check_dtype(residual, x.dtype(), "fused linear: residual");
  check_sizes(residual, {args.rows, args.outputs}, "fused linear: residual");
  check_contiguous_rows(residual, "fused linear: residual");
  RTP_LLM_CHECK(x.data() != residual.data() || x.numel() == 0,
                "fused linear: x and residual are the same memory");
  args.out = residual.data();
  args.out_stride = residual.stride(0);
  args.end = LinearEnd::kAdd;
}

Activation linear_activation(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  fail("fused linear: activation is '", name, "'; expected silu, gelu or gelu_tanh");
}

SkinnyLinearArgs linear_args(const Tensor& x, int64_t outputs, const OptionalTensor& bias) {
  RTP_LLM_CHECK(x.dtype() == DType::kBFloat16 || x.dtype() == DType::kFloat16,
                "fused linear: x is ", x.describe(), "; expected bfloat16 or float16");
  check_matrix(x, "fused linear: x");
  if (bias.has_value()) {
    check_dtype(*bias, x.dtype(), "fused linear: bias");
    check_sizes(*bias, {outputs}, "fused linear: bias");
    check_contiguous(*bias, "fused linear: bias");
  }
  SkinnyLinearArgs args = {};
  args.x = x.data();
  args.bias = bias.has_value() ? bias->data() : nullptr;
  args.rows = x.size(0);
  args.columns = x.size(1);
  args.outputs = outputs;
  args.x_stride = x.stride(0);
  args.dtype = x.dtype();
  return args;
}

SkinnyLinearArgs skinny_linear_args(const Tensor& x, const Tensor& weight,
                                    const OptionalTensor& bias) {
  check_dtype(weight, x.dtype(), "fused linear: weight");
  check_matrix(weight, "fused linear: weight");
  SkinnyLinearArgs args = linear_args(x, weight.size(0), bias);
  RTP_LLM_CHECK(weight.size(1) == x.size(1), "fused linear: weight is ", weight.describe(),
                " and x ", x.describe(), "; expected equal numbers of columns");
  args.weight = weight.data();
  args.weight_stride = weight.stride(0);
  return args;
}

Tensor skinny_linear_result(SkinnyLinearArgs& args, const Tensor& x, LinearEnd end) {
  args.end = end;
  args.out_stride = end == LinearEnd::kGate ? args.outputs / 2 : args.outputs;
  Tensor out = empty(x, {args.rows, args.out_stride},
                     end == LinearEnd::kFloat ? DType::kFloat32 : args.dtype);
  args.out = out.data();
  return out;
}

Prepared<SkinnyLinearArgs, Tensor> prepare(const SkinnyLinearCall& call) {
  SkinnyLinearArgs args = skinny_linear_args(call.x, call.weight, call.bias);
  Tensor out = skinny_linear_result(args, call.x, LinearEnd::kStore);
  return {args, std::move(out)};
}

Prepared<GatedLinearArgs, Tensor> prepare(const GatedLinearCall& call) {
  GatedLinearArgs args = skinny_linear_args(call.x, call.weight, call.bias);
  args.activation = linear_activation(call.activation);
  Tensor out = skinny_linear_result(args, call.x, LinearEnd::kGate);
  return {args, std::move(out)};
}

Prepared<LinearAddArgs, void> prepare(const LinearAddCall& call) {
  LinearAddArgs args = skinny_linear_args(call.x, call.weight, call.bias);
  set_linear_residual(args, call.x, call.residual);
  return {args};
}

Prepared<NormLinearArgs, Tensor> prepare(const NormLinearCall& call) {
  NormLinearArgs args = skinny_linear_args(call.x, call.weight, call.bias);
  set_linear_norm(args, call.x, call.norm_weight, call.eps, call.norm_offset);
  Tensor out = skinny_linear_result(args, call.x, LinearEnd::kStore);
  return {args, std::move(out)};
}

Prepared<NormGatedLinearArgs, Tensor> prepare(const NormGatedLinearCall& call) {
  NormGatedLinearArgs args = skinny_linear_args(call.x, call.weight, call.bias);
  set_linear_norm(args, call.x, call.norm_weight, call.eps, call.norm_offset);
  args.activation = linear_activation(call.activation);
  Tensor out = skinny_linear_result(args, call.x, LinearEnd::kGate);
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
