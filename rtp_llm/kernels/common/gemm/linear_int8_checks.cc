// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/linear_int8_checks.h"

namespace rtp_llm::glue {

Int8LinearArgs int8_linear_args(const Tensor& x, const Tensor& weight, const Tensor& scale,
                                const OptionalTensor& bias) {
  check_float_dtype(x, "int8_linear: x");
  check_dim(x, 2, "int8_linear: x");
  check_contiguous_rows(x, "int8_linear: x");
  const int64_t groups = (x.size(1) + kInt8GroupColumns - 1) / kInt8GroupColumns;
  check_dtype(weight, DType::kInt8, "int8_linear: weight");
  check_dim(weight, 2, "int8_linear: weight");
  check_contiguous(weight, "int8_linear: weight");
  RTP_LLM_CHECK(weight.size(1) == groups * kInt8GroupColumns, "int8_linear: weight is ",
                weight.describe(), " and x has ", x.size(1),
                " columns; expected as many, rounded up to groups of ", kInt8GroupColumns);
  check_dtype(scale, DType::kFloat32, "int8_linear: scale");
  check_sizes(scale, {weight.size(0), groups}, "int8_linear: scale");
  check_contiguous(scale, "int8_linear: scale");
  if (bias.has_value()) {
    check_dtype(*bias, x.dtype(), "int8_linear: bias");
    check_sizes(*bias, {weight.size(0)}, "int8_linear: bias");
    check_contiguous(*bias, "int8_linear: bias");
  }
  Int8LinearArgs args = {};
  args.dtype = x.dtype();
  args.x = x.data();
  args.weight = weight.data<uint8_t>();
  args.scale = scale.data<float>();
  args.bias = bias.has_value() ? bias->data() : nullptr;
  args.m = x.size(0);
  args.n = weight.size(0);
  args.k = x.size(1);
  args.groups = groups;
  args.x_stride = x.stride(0);
  args.out_stride = weight.size(0);
  return args;
}

}  // namespace rtp_llm::glue
