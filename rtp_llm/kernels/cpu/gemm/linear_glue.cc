// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/linear_int8_checks.h"
#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/gemm/linear.h"
#include "rtp_llm/kernels/cpu/gemm/linear_int8.h"

namespace rtp_llm::cpu {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void check_bias(const OptionalTensor& bias, const Tensor& x, int64_t outputs, const char* what) {
  if (!bias.has_value()) return;
  glue::check_dtype(*bias, x.dtype(), what);
  glue::check_sizes(*bias, {outputs}, what);
  glue::check_contiguous(*bias, what);
}

// The arguments of product `index` of a stack; it has its own rows of x, weight and out.
LinearArgs product_of(const LinearArgs& args, int64_t index, int64_t x_step, int64_t weight_step) {
  const auto advance = [&](const void* data, int64_t step) {
    return static_cast<const char*>(data) + index * step * element_size(args.dtype);
  };
  LinearArgs one = args;
  one.x = advance(args.x, x_step);
  one.weight = advance(args.weight, weight_step);
  one.out = const_cast<char*>(advance(args.out, args.n));
  return one;
}

// out[:, i] = x[:, i] weight[i]^T. A thread computes whole products, so that no thread waits for
// another.
Tensor stacked_linear(const glue::LinearCall& call) {
  const int64_t products = call.x.size(1);
  RTP_LLM_CHECK(call.weight.size(0) == products && call.weight.size(2) == call.x.size(2) &&
                    !call.bias.has_value(),
                "linear: weight is ", call.weight.describe(), " and x ", call.x.describe(),
                "; expected equal numbers of products and of columns, and no bias");
  LinearArgs args = {};
  args.dtype = call.x.dtype();
  args.m = call.x.size(0);
  args.n = call.weight.size(1);
  args.k = call.x.size(2);
  Tensor out = glue::empty(call.x, {args.m, products, args.n}, args.dtype);
  args.x = call.x.data();
  args.weight = call.weight.data();
  args.out = out.data();
  args.x_stride = call.x.stride(0);
  args.weight_stride = call.weight.stride(1);
  args.out_stride = products * args.n;
  const SerialFor serial;
  glue::parallel_for()(0, products, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      run_linear(product_of(args, i, call.x.stride(1), call.weight.stride(0)), serial);
    }
  });
  return out;
}

Tensor linear(const glue::LinearCall& call) {
  const int64_t dim = call.x.dim() == 3 ? 3 : 2;
  glue::check_float_dtype(call.x, "linear: x");
  glue::check_dim(call.x, dim, "linear: x");
  glue::check_inner_contiguous(call.x, 1, "linear: x");
  glue::check_dtype(call.weight, call.x.dtype(), "linear: weight");
  glue::check_dim(call.weight, dim, "linear: weight");
  glue::check_inner_contiguous(call.weight, 1, "linear: weight");
  if (dim == 3) return stacked_linear(call);
  RTP_LLM_CHECK(call.weight.size(1) == call.x.size(1), "linear: weight is ", call.weight.describe(),
                " and x ", call.x.describe(), "; expected equal numbers of columns");
  const int64_t outputs = call.weight.size(0);
  check_bias(call.bias, call.x, outputs, "linear: bias");
  Tensor out = glue::empty(call.x, {call.x.size(0), outputs}, call.x.dtype());
  LinearArgs args = {};
  args.dtype = call.x.dtype();
  args.x = call.x.data();
  args.weight = call.weight.data();
  args.bias = call.bias.has_value() ? call.bias->data() : nullptr;
  args.out = out.data();
  args.m = call.x.size(0);
  args.n = outputs;
  args.k = call.x.size(1);
  args.x_stride = call.x.stride(0);
  args.weight_stride = call.weight.stride(0);
  args.out_stride = outputs;
  run_linear(args, glue::parallel_for());
  return out;
}

template <class Call, void (*kRun)(const Int8LinearArgs&, const ParallelFor&)>
Tensor packed_linear(const Call& call) {
  Int8LinearArgs args = glue::int8_linear_args(call.x, call.weight, call.scale, call.bias);
  Tensor out = glue::empty(call.x, {args.m, args.n}, args.dtype);
  args.out = out.data();
  kRun(args, glue::parallel_for());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&linear>(library);
  glue::implement<&packed_linear<glue::Int8LinearCall, run_int8_linear>>(library);
  glue::implement<&packed_linear<glue::W8a8Int8LinearCall, run_w8a8_int8_linear>>(library);
}

}  // namespace rtp_llm::cpu
