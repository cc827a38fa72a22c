// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of products with integer weights in groups that are packed in tiles.
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/skinny_linear_checks.h"
#include "rtp_llm/kernels/common/gemm/tiled_wna16.h"

namespace rtp_llm::glue {
namespace {

// Scales, of which there are as many as zero points.
void set_groups(TiledWna16Args& args, const Tensor& scale, int64_t k_blocks) {
  const int64_t blocks = scale.size(0), groups = scale.size(2);
  const bool good = groups == 1 ? blocks > 0 && k_blocks % blocks == 0
                                : (groups == 2 || groups == 4) && blocks == k_blocks;
  RTP_LLM_CHECK(good, "tiled_wna16: scale is ", scale.describe(), " of ", k_blocks,
                " blocks of columns; expected 1, 2 or 4 groups of each, or one of several blocks");
  args.groups = static_cast<int>(groups);
  args.k_blocks_of_group = static_cast<int>(k_blocks / blocks);
}

// All but the end and `out`.
template <class Call>
TiledWna16Args tiled_args(const Call& call) {
  const Tensor &x = call.x, &weight = call.weight, &scale = call.scale;
  RTP_LLM_CHECK(call.bits == 4 || call.bits == 8, "tiled_wna16: bits is ", call.bits,
                "; expected 4 or 8");
  RTP_LLM_CHECK(scale.dtype() == DType::kFloat16 || scale.dtype() == DType::kBFloat16,
                "tiled_wna16: scale is ", scale.describe(), "; expected float16 or bfloat16");
  check_dim(scale, 3, "tiled_wna16: scale");
  check_contiguous(scale, "tiled_wna16: scale");
  const int64_t outputs = scale.size(1);
  TiledWna16Args args = {};
  args.linear = linear_args(x, outputs, call.bias);
  RTP_LLM_CHECK(x.size(1) > 0 && x.size(1) % kWnaColumns == 0 && outputs % kWnaOutputs == 0,
                "tiled_wna16: the weight is [", outputs, ", ", x.size(1),
                "]; expected multiples of ", kWnaOutputs, " and ", kWnaColumns);
  const int64_t k_blocks = x.size(1) / kWnaColumns;
  check_dtype(weight, DType::kInt8, "tiled_wna16: weight");
  check_sizes(weight, {k_blocks, outputs / kWnaUnitRows, call.bits / 4, 32, 16},
              "tiled_wna16: weight");
  check_contiguous(weight, "tiled_wna16: weight");
  set_groups(args, scale, k_blocks);
  if (call.zero.has_value()) {
    check_dtype(*call.zero, DType::kInt8, "tiled_wna16: zero");
    check_sizes(*call.zero, {scale.size(0), outputs, scale.size(2)}, "tiled_wna16: zero");
    check_contiguous(*call.zero, "tiled_wna16: zero");
    args.zero = static_cast<const uint8_t*>(call.zero->data());
  }
  args.codes = static_cast<const uint8_t*>(weight.data());
  args.scale = scale.data();
  args.bits = static_cast<int>(call.bits);
  args.half_scale = scale.dtype() == DType::kFloat16;
  return args;
}

}  // namespace

Prepared<TiledWna16LinearArgs, Tensor> prepare(const TiledWna16LinearCall& call) {
  TiledWna16Args args = tiled_args(call);
  LinearEnd end = LinearEnd::kStore;
  if (call.activation != "none") {
    end = LinearEnd::kGate;
    args.linear.activation = linear_activation(call.activation);
    RTP_LLM_CHECK(args.linear.outputs % (2 * kWnaOutputs) == 0, "tiled_wna16: the weight has ",
                  args.linear.outputs, " rows; expected a multiple of ", 2 * kWnaOutputs,
                  " with an activation");
  }
  if (call.norm_weight.has_value()) {
    set_linear_norm(args.linear, call.x, *call.norm_weight, call.eps, call.norm_offset);
  }
  Tensor out = skinny_linear_result(args.linear, call.x, end);
  return {args, std::move(out)};
}

Prepared<TiledWna16AddArgs, void> prepare(const TiledWna16AddCall& call) {
  TiledWna16Args args = tiled_args(call);
  set_linear_residual(args.linear, call.x, call.residual);
  constexpr uintptr_t kAccessBytes = 8;
  const auto stride =
      static_cast<uintptr_t>(call.residual.stride(0)) * element_size(args.linear.dtype);
  RTP_LLM_CHECK((reinterpret_cast<uintptr_t>(call.residual.data()) | stride) % kAccessBytes == 0,
                "tiled_wna16: residual is ", call.residual.describe(), " with a row stride of ",
                call.residual.stride(0), "; expected rows at multiples of 8 bytes");
  return {args};
}

}  // namespace rtp_llm::glue
