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

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  glue::check_float_dtype(x, "linear: x");
  glue::check_dim(x, 2, "linear: x");
  glue::check_contiguous_rows(x, "linear: x");
  glue::check_dtype(weight, x.dtype(), "linear: weight");
  glue::check_dim(weight, 2, "linear: weight");
  glue::check_contiguous_rows(weight, "linear: weight");
  RTP_LLM_CHECK(weight.size(1) == x.size(1), "linear: weight is ", weight.describe(), " and x ",
                x.describe(), "; expected equal numbers of columns");
  const int64_t outputs = weight.size(0);
  check_bias(bias, x, outputs, "linear: bias");
  Tensor out = glue::empty(x, {x.size(0), outputs}, x.dtype());
  LinearArgs args = {};
  args.dtype = x.dtype();
  args.x = x.data();
  args.weight = weight.data();
  args.bias = bias.has_value() ? bias->data() : nullptr;
  args.out = out.data();
  args.m = x.size(0);
  args.n = outputs;
  args.k = x.size(1);
  args.x_stride = x.stride(0);
  args.weight_stride = weight.stride(0);
  args.out_stride = outputs;
  run_linear(args, glue::parallel_for());
  return out;
}

template <void (*kRun)(const Int8LinearArgs&, const ParallelFor&)>
Tensor packed_linear(const Tensor& x, const Tensor& weight, const Tensor& scale,
                     const OptionalTensor& bias) {
  Int8LinearArgs args = glue::int8_linear_args(x, weight, scale, bias);
  Tensor out = glue::empty(x, {args.m, args.n}, args.dtype);
  args.out = out.data();
  kRun(args, glue::parallel_for());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<linear>(library, "linear");
  glue::implement<packed_linear<run_int8_linear>>(library, "int8_linear");
  glue::implement<packed_linear<run_w8a8_int8_linear>>(library, "w8a8_int8_linear");
}

}  // namespace rtp_llm::cpu
