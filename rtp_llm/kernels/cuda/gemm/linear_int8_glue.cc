// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/linear_int8_checks.h"
#include "rtp_llm/kernels/common/gemm/torch_linear.h"
#include "rtp_llm/kernels/cuda/gemm/linear_int8.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

// Multiplies many rows by the weight, widened to the rows' own type.
Tensor multiply_widened(const Int8LinearArgs& args, const Tensor& x, const OptionalTensor& bias,
                        void* stream) {
  const Tensor wide = glue::empty(x, {args.n, args.k}, args.dtype);
  widen_int8_weight(args, wide.data(), stream);
  return glue::torch_linear(x, wide, bias);
}

Tensor int8_linear_packed(const glue::Int8LinearCall& call) {
  Int8LinearArgs args = glue::int8_linear_args(call.x, call.weight, call.scale, call.bias);
  const OnDevice device(call.x);
  if (args.m > kInt8MostRows) return multiply_widened(args, call.x, call.bias, device.stream());
  Tensor out = glue::empty(call.x, {args.m, args.n}, args.dtype);
  args.out = out.data();
  int8_linear(args, device.stream());
  return out;
}

Tensor w8a8_int8_linear_packed(const glue::W8a8Int8LinearCall& call) {
  Int8LinearArgs args = glue::int8_linear_args(call.x, call.weight, call.scale, call.bias);
  const OnDevice device(call.x);
  if (args.m > kInt8MostRows) return multiply_widened(args, call.x, call.bias, device.stream());
  Tensor out = glue::empty(call.x, {args.m, args.n}, args.dtype);
  const Tensor numbers =
      glue::empty(call.x, {args.m, args.groups * kInt8GroupColumns}, DType::kInt8);
  const Tensor scales = glue::empty(call.x, {args.groups, args.m}, DType::kFloat32);
  args.out = out.data();
  w8a8_int8_linear(args, numbers.data<int8_t>(), scales.data<float>(), device.stream());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&int8_linear_packed>(library);
  glue::implement<&w8a8_int8_linear_packed>(library);
}

}  // namespace rtp_llm::cuda
