// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/skinny_linear_checks.h"
#include "rtp_llm/kernels/common/gemm/torch_linear.h"
#include "rtp_llm/kernels/common/norm/norm_checks.h"
#include "rtp_llm/kernels/cuda/gemm/skinny_linear.h"
#include "rtp_llm/kernels/cuda/gemm/stream_linear.h"
#include "rtp_llm/kernels/cuda/norm/norm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

constexpr glue::SkinnyLimits kLimits = {kSkinnyRows, kSkinnyColumns, kSkinnyOutputs};

// Up to how many rows products with this weight are quicker than a library's.
int64_t product_rows(const Tensor& weight) {
  const int64_t skinny = skinny_linear_rows(weight.size(0), weight.size(1), weight.dtype());
  const int64_t stream = stream_linear_rows(weight.size(0), weight.size(1), weight.dtype());
  return skinny > stream ? skinny : stream;
}

// Of products without a norm and a residual, which may be streams on some GPUs.
glue::SkinnyLimits product_limits(const Tensor& weight) {
  const int64_t rows = weight.dim() == 2 ? product_rows(weight) : 0;
  return {rows > kSkinnyRows ? rows : kSkinnyRows, kSkinnyColumns, kSkinnyOutputs};
}

void multiply(const SkinnyLinearArgs& args, void* stream) {
  if (streams_faster(args)) {
    stream_linear(args, stream);
  } else {
    skinny_linear(args, stream);
  }
}

Tensor result_of(SkinnyLinearArgs& args, const Tensor& x, int64_t columns, DType dtype) {
  Tensor out = glue::empty(x, {args.rows, columns}, dtype);
  args.out = out.data();
  args.out_stride = columns;
  return out;
}

int64_t skinny_rows(const glue::SkinnyLinearRowsCall& call) {
  glue::check_dim(call.weight, 2, "skinny_linear_rows: weight");
  const OnDevice device(call.weight);
  return product_rows(call.weight);
}

int64_t fused_linear_rows(const glue::FusedLinearRowsCall& call) {
  glue::check_dim(call.weight, 2, "fused_linear_rows: weight");
  const OnDevice device(call.weight);
  return skinny_linear_rows(call.weight.size(0), call.weight.size(1), call.weight.dtype());
}

Tensor store(const glue::SkinnyLinearCall& call) {
  const OnDevice device(call.x);
  SkinnyLinearArgs args =
      glue::skinny_linear_args(call.x, call.weight, call.bias, product_limits(call.weight));
  args.end = LinearEnd::kStore;
  Tensor out = result_of(args, call.x, args.outputs, args.dtype);
  multiply(args, device.stream());
  return out;
}

Tensor gated_linear(const glue::GatedLinearCall& call) {
  const OnDevice device(call.x);
  SkinnyLinearArgs args =
      glue::skinny_linear_args(call.x, call.weight, call.bias, product_limits(call.weight));
  args.end = LinearEnd::kGate;
  args.activation = glue::activation_named(call.activation);
  Tensor out = result_of(args, call.x, args.outputs / 2, args.dtype);
  multiply(args, device.stream());
  return out;
}

void linear_add(const glue::LinearAddCall& call) {
  SkinnyLinearArgs args = glue::skinny_linear_args(call.x, call.weight, call.bias, kLimits);
  glue::set_residual(args, call.x, call.residual);
  const OnDevice device(call.x);
  skinny_linear(args, device.stream());
}

// Norms inside the kernel where it can, else before it; x is kept as long as the kernel is not
// launched.
void norm_and_run(SkinnyLinearArgs& args, const Tensor& x, const Tensor& norm_weight, double eps,
                  double offset) {
  const OnDevice device(x);
  if (args.dtype == DType::kBFloat16) {
    glue::set_norm(args, x, norm_weight, eps, offset);
    return skinny_linear(args, device.stream());
  }
  RmsNormArgs norm = glue::rms_norm_args(x, norm_weight, eps, offset);
  const Tensor normed = glue::empty_like(x);
  norm.out = normed.data();
  rms_norm(norm, device.stream());
  args.x = normed.data();
  args.x_stride = args.columns;
  skinny_linear(args, device.stream());
}

Tensor norm_linear(const glue::NormLinearCall& call) {
  SkinnyLinearArgs args = glue::skinny_linear_args(call.x, call.weight, call.bias, kLimits);
  args.end = LinearEnd::kStore;
  Tensor out = result_of(args, call.x, args.outputs, args.dtype);
  norm_and_run(args, call.x, call.norm_weight, call.eps, call.norm_offset);
  return out;
}

Tensor norm_gated_linear(const glue::NormGatedLinearCall& call) {
  SkinnyLinearArgs args = glue::skinny_linear_args(call.x, call.weight, call.bias, kLimits);
  args.end = LinearEnd::kGate;
  args.activation = glue::activation_named(call.activation);
  Tensor out = result_of(args, call.x, args.outputs / 2, args.dtype);
  norm_and_run(args, call.x, call.norm_weight, call.eps, call.norm_offset);
  return out;
}

bool rows_aligned(const Tensor& matrix) {
  constexpr uintptr_t kAccessBytes = 16;
  const int64_t stride_bytes = matrix.stride(0) * element_size(matrix.dtype());
  return (reinterpret_cast<uintptr_t>(matrix.data()) | static_cast<uintptr_t>(stride_bytes)) %
             kAccessBytes ==
         0;
}

// Up to how many rows of x float32 results are quicker than a library's: of many outputs and short
// rows these are as many bytes again, which streams of the weight write between its tiles.
int64_t float_rows(const Tensor& weight) {
  constexpr int64_t kManyOutputs = 16384, kLongRow = 8192;
  const int64_t outputs = weight.size(0), columns = weight.size(1);
  if (outputs < kManyOutputs || columns >= kLongRow) return product_rows(weight);
  return skinny_linear_rows(outputs, columns, weight.dtype());
}

bool takes(const Tensor& x, const Tensor& weight) {
  return x.dim() == 2 && weight.dim() == 2 && rows_aligned(x) && rows_aligned(weight) &&
         x.size(0) > 0 && x.size(0) <= float_rows(weight);
}

Tensor linear_float(const glue::LinearFloatCall& call) {
  const OnDevice device(call.x);
  if (!takes(call.x, call.weight)) return glue::torch_float_linear(call.x, call.weight);
  SkinnyLinearArgs args =
      glue::skinny_linear_args(call.x, call.weight, std::nullopt, product_limits(call.weight));
  args.end = LinearEnd::kFloat;
  Tensor out = result_of(args, call.x, args.outputs, DType::kFloat32);
  multiply(args, device.stream());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&fused_linear_rows>(library);
  glue::implement<&skinny_rows>(library);
  glue::implement<&store>(library);
  glue::implement<&gated_linear>(library);
  glue::implement<&linear_add>(library);
  glue::implement<&norm_linear>(library);
  glue::implement<&norm_gated_linear>(library);
  glue::implement<&linear_float>(library);
}

}  // namespace rtp_llm::cuda
