// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of products with integer weights in groups that are packed in tiles.
#include <cstdint>

#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/skinny_linear_checks.h"
#include "rtp_llm/kernels/common/gemm/tiled_wna16.h"

namespace rtp_llm::glue {
namespace {

// Scales, of which there are as many as zero points.
void set_groups(TiledWna16Args& args, const Tensor& scale, int64_t k_blocks) {
  const int64_t blocks = scale.size(0), groups = scale.size(2);
  const bool good = groups == 1 ? blocks > 0 && k_blocks % blocks == 0
                                : (groups == 2 || groups == 4 || groups == 8) && blocks == k_blocks;
  RTP_LLM_CHECK(good, "tiled_wna16: scale is ", scale.describe(), " of ", k_blocks,
                " blocks of columns; expected 1, 2, 4 or 8 groups of each, or one of several "
                "blocks");
  args.groups = static_cast<int>(groups);
  args.k_blocks_of_group = static_cast<int>(k_blocks / blocks);
}

void set_zeros(TiledWna16Args& args, const Tensor& zero, const Tensor& scale) {
  args.float_zero = zero.dtype() != DType::kInt8;
  if (args.float_zero) check_dtype(zero, scale.dtype(), "tiled_wna16: zero");
  check_sizes(zero, {scale.size(0), scale.size(1), scale.size(2)}, "tiled_wna16: zero");
  check_contiguous(zero, "tiled_wna16: zero");
  args.zero = static_cast<const uint8_t*>(zero.data());
}

// Formats that only GGUF weights have: there are kernels for the group sizes of their blocks alone.
void check_blocks(const TiledWna16Args& args) {
  const int groups = args.bits == 6 ? 8 : 4;
  const bool good = args.groups == groups && (args.zero == nullptr || args.float_zero) &&
                    (!args.float_zero || args.bits < 6);
  RTP_LLM_CHECK(good, "tiled_wna16: ", args.groups, " groups of ", args.bits, " bits",
                args.zero == nullptr ? "" : " with zero points",
                "; expected 4 groups of 4 or 5 bits with floats as zero points, 4 of 5 bits or 8 "
                "of 6 bits without");
}

// The weight alone, [outputs, columns].
template <class Call>
TiledWna16Args tiled_weight(const Call& call, int64_t columns) {
  const Tensor &weight = call.weight, &scale = call.scale;
  const int64_t bits = call.bits;
  RTP_LLM_CHECK(bits == 4 || bits == 5 || bits == 6 || bits == 8, "tiled_wna16: bits is ", bits,
                "; expected 4, 5, 6 or 8");
  RTP_LLM_CHECK(scale.dtype() == DType::kFloat16 || scale.dtype() == DType::kBFloat16,
                "tiled_wna16: scale is ", scale.describe(), "; expected float16 or bfloat16");
  check_dim(scale, 3, "tiled_wna16: scale");
  check_contiguous(scale, "tiled_wna16: scale");
  const int64_t outputs = scale.size(1), k_blocks = columns / kWnaColumns;
  RTP_LLM_CHECK(columns > 0 && columns % kWnaColumns == 0 && outputs % kWnaOutputs == 0,
                "tiled_wna16: the weight is [", outputs, ", ", columns, "]; expected multiples of ",
                kWnaOutputs, " and ", kWnaColumns);
  check_dtype(weight, DType::kInt8, "tiled_wna16: weight");
  check_sizes(weight, {k_blocks, outputs / kWnaUnitRows, kWnaUnitRows * kWnaColumns * bits / 8},
              "tiled_wna16: weight");
  check_contiguous(weight, "tiled_wna16: weight");
  TiledWna16Args args = {};
  args.bits = static_cast<int>(bits);
  set_groups(args, scale, k_blocks);
  if (call.zero.has_value()) set_zeros(args, *call.zero, scale);
  if (args.float_zero || bits == 5 || bits == 6 || args.groups == 8) check_blocks(args);
  args.codes = static_cast<const uint8_t*>(weight.data());
  args.scale = scale.data();
  RTP_LLM_CHECK((reinterpret_cast<uintptr_t>(args.codes) | reinterpret_cast<uintptr_t>(args.scale) |
                 reinterpret_cast<uintptr_t>(args.zero)) %
                        16 ==
                    0,
                "tiled_wna16: weight, scale and zero begin at multiples of 16 bytes");
  args.half_scale = scale.dtype() == DType::kFloat16;
  args.linear.outputs = outputs;
  args.linear.columns = columns;
  return args;
}

// All but the end and `out`.
template <class Call>
TiledWna16Args tiled_args(const Call& call) {
  check_dim(call.x, 2, "tiled_wna16: x");
  TiledWna16Args args = tiled_weight(call, call.x.size(1));
  args.linear = linear_args(call.x, args.linear.outputs, call.bias);
  const bool blocks = args.float_zero || args.bits == 5 || args.bits == 6;
  RTP_LLM_CHECK(!blocks || args.linear.dtype == DType::kBFloat16, "tiled_wna16: x is ",
                call.x.describe(), "; expected bfloat16 for such a weight");
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

Prepared<TiledWna16FloatArgs, Tensor> prepare(const TiledWna16FloatCall& call) {
  TiledWna16Args args = tiled_args(call);
  Tensor out = skinny_linear_result(args.linear, call.x, LinearEnd::kFloat);
  return {args, std::move(out)};
}

Prepared<TiledWna16EmbeddingArgs, void> prepare(const TiledWna16EmbeddingCall& call) {
  check_dim(call.out, 2, "tiled_wna16: out");
  check_contiguous(call.out, "tiled_wna16: out");
  check_index(call.ids, "tiled_wna16: ids");
  check_sizes(call.ids, {call.out.size(0)}, "tiled_wna16: ids");
  TiledWna16EmbeddingArgs args = {};
  args.weight = tiled_weight(call, call.out.size(1));
  args.dtype = call.out.dtype();
  RTP_LLM_CHECK(args.dtype == DType::kBFloat16 || args.dtype == DType::kFloat16,
                "tiled_wna16: out is ", call.out.describe(), "; expected bfloat16 or float16");
  args.ids = call.ids.data<int32_t>();
  args.out = call.out.data();
  args.count = call.out.size(0);
  return {args};
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
