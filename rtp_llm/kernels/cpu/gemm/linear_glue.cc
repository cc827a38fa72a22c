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

Tensor linear(const glue::LinearCall& call) {
  glue::check_float_dtype(call.x, "linear: x");
  glue::check_dim(call.x, 2, "linear: x");
  glue::check_contiguous_rows(call.x, "linear: x");
  glue::check_dtype(call.weight, call.x.dtype(), "linear: weight");
  glue::check_dim(call.weight, 2, "linear: weight");
  glue::check_contiguous_rows(call.weight, "linear: weight");
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

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<&linear>(library);
  glue::implement<&packed_linear<glue::Int8LinearCall, run_int8_linear>>(library);
  glue::implement<&packed_linear<glue::W8a8Int8LinearCall, run_w8a8_int8_linear>>(library);
}

}  // namespace rtp_llm::cpu
