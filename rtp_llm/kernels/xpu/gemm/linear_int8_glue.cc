// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/linear_int8_checks.h"
#include "rtp_llm/kernels/xpu/gemm/linear_int8.h"
#include "rtp_llm/kernels/xpu/on_queue.h"

namespace rtp_llm::xpu {
namespace {

using glue::Tensor;

template <class Call, void (*multiply)(Queue&, const Int8LinearArgs&)>
Tensor multiply_packed(const Call& call) {
  Int8LinearArgs args = glue::int8_linear_args(call.x, call.weight, call.scale, call.bias);
  Tensor out = glue::empty(call.x, {args.m, args.n}, args.dtype);
  args.out = out.data();
  const OnQueue device(call.x);
  multiply(device.queue(), args);
  return out;
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) {
  glue::implement<&multiply_packed<glue::Int8LinearCall, int8_linear>>(library);
  glue::implement<&multiply_packed<glue::W8a8Int8LinearCall, w8a8_int8_linear>>(library);
}

}  // namespace rtp_llm::xpu
