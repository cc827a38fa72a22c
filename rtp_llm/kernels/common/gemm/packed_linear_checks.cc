// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of packed linear layers.
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/packed_linear.h"

namespace rtp_llm::glue {
namespace {

LinearActivation linear_activation(const std::string& name) {
  if (name == "none") return LinearActivation::kNone;
  if (name == "gelu") return LinearActivation::kGelu;
  RTP_LLM_CHECK(name == "gelu_tanh", "packed_linear: activation is ", name,
                "; expected none, gelu or gelu_tanh");
  return LinearActivation::kGeluTanh;
}

}  // namespace

Prepared<PackedLinearArgs, Tensor> prepare(const PackedLinearCall& call) {
  check_dtype(call.x, DType::kFloat32, "packed_linear: x");
  check_dim(call.x, 2, "packed_linear: x");
  check_contiguous_rows(call.x, "packed_linear: x");
  PackedLinearArgs args = {};
  args.m = call.x.size(0);
  args.n = call.outputs;
  args.k = call.x.size(1);
  check_dtype(call.weight, DType::kFloat32, "packed_linear: weight");
  check_sizes(call.weight, {args.column_blocks(), args.k, kPackedColumns}, "packed_linear: weight");
  check_contiguous(call.weight, "packed_linear: weight");
  if (call.bias.has_value()) {
    check_dtype(*call.bias, DType::kFloat32, "packed_linear: bias");
    check_sizes(*call.bias, {args.n}, "packed_linear: bias");
    check_contiguous(*call.bias, "packed_linear: bias");
    args.bias = call.bias->data<float>();
  }
  args.activation = linear_activation(call.activation);
  Tensor out = empty(call.x, {args.m, args.n}, DType::kFloat32);
  args.x = call.x.data<float>();
  args.weight = call.weight.data<float>();
  args.out = out.data<float>();
  args.x_stride = call.x.stride(0);
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
