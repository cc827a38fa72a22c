// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"
#include "rtp_llm/kernels/common/fp8/fp8_weight.h"

namespace rtp_llm::glue {
namespace {

// Blocks, or rows.
void set_scales(Fp8WeightLinearArgs& args, const Tensor& scales) {
  check_dtype(scales, DType::kFloat32, "fp8_weight_linear: scales");
  check_dim(scales, 2, "fp8_weight_linear: scales");
  check_contiguous(scales, "fp8_weight_linear: scales");
  const int64_t down = fp8_blocks(args.n), across = fp8_blocks(args.k);
  const bool in_blocks = scales.size(0) == down && scales.size(1) == across;
  RTP_LLM_CHECK(in_blocks || (scales.size(0) == args.n && scales.size(1) == 1),
                "fp8_weight_linear: scales is ", scales.describe(), "; expected shape [", down,
                ", ", across, "] or [", args.n, ", 1]");
  args.scales = scales.data<float>();
  args.block_rows = in_blocks ? kFp8Block : 1;
  args.block_columns = in_blocks ? kFp8Block : args.k;
  args.row_scales = scales.size(1);
}

}  // namespace

Prepared<Fp8WeightLinearArgs, Tensor> prepare(const Fp8WeightLinearCall& call) {
  check_float_dtype(call.x, "fp8_weight_linear: x");
  check_dim(call.x, 2, "fp8_weight_linear: x");
  check_inner_contiguous(call.x, 1, "fp8_weight_linear: x");
  check_dtype(call.weight, DType::kFloat8E4m3fn, "fp8_weight_linear: weight");
  check_dim(call.weight, 2, "fp8_weight_linear: weight");
  check_inner_contiguous(call.weight, 1, "fp8_weight_linear: weight");
  Fp8WeightLinearArgs args = {};
  args.rows = call.x.size(0);
  args.n = call.weight.size(0);
  args.k = call.x.size(1);
  args.dtype = call.x.dtype();
  check_sizes(call.weight, {args.n, args.k}, "fp8_weight_linear: weight");
  set_scales(args, call.scales);
  if (call.bias.has_value()) {
    check_dtype(*call.bias, args.dtype, "fp8_weight_linear: bias");
    check_sizes(*call.bias, {args.n}, "fp8_weight_linear: bias");
    check_contiguous(*call.bias, "fp8_weight_linear: bias");
    args.bias = call.bias->data();
  }
  args.x = call.x.data();
  args.x_stride = call.x.stride(0);
  args.weight = static_cast<const uint8_t*>(call.weight.data());
  args.weight_stride = call.weight.stride(0);
  Tensor out = empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
