// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/mxfp4.h"

namespace rtp_llm::glue {

Prepared<Mxfp4GroupedLinearArgs, Tensor> prepare(const Mxfp4GroupedLinearCall& call) {
  check_float_dtype(call.x, "mxfp4_grouped_linear: x");
  check_dim(call.x, 2, "mxfp4_grouped_linear: x");
  check_contiguous(call.x, "mxfp4_grouped_linear: x");
  const int64_t k = call.x.size(1);
  RTP_LLM_CHECK(k % kMxfp4Block == 0, "mxfp4_grouped_linear: x is ", call.x.describe(),
                "; expected columns in whole blocks of ", kMxfp4Block);
  check_dtype(call.blocks, DType::kInt8, "mxfp4_grouped_linear: blocks");
  check_dim(call.blocks, 3, "mxfp4_grouped_linear: blocks");
  check_contiguous(call.blocks, "mxfp4_grouped_linear: blocks");
  RTP_LLM_CHECK(call.blocks.size(2) * 2 == k, "mxfp4_grouped_linear: blocks is ",
                call.blocks.describe(), " and x ", call.x.describe(),
                "; expected a byte for every two columns");
  const int64_t experts = call.blocks.size(0);
  const int64_t n = call.blocks.size(1);
  check_dtype(call.scales, DType::kInt8, "mxfp4_grouped_linear: scales");
  check_sizes(call.scales, {experts, n, k / kMxfp4Block}, "mxfp4_grouped_linear: scales");
  check_contiguous(call.scales, "mxfp4_grouped_linear: scales");
  check_index(call.offsets, "mxfp4_grouped_linear: offsets");
  check_sizes(call.offsets, {experts + 1}, "mxfp4_grouped_linear: offsets");
  Mxfp4GroupedLinearArgs args = {};
  if (call.bias.has_value()) {
    check_dtype(*call.bias, call.x.dtype(), "mxfp4_grouped_linear: bias");
    check_sizes(*call.bias, {experts, n}, "mxfp4_grouped_linear: bias");
    check_contiguous(*call.bias, "mxfp4_grouped_linear: bias");
    args.bias = call.bias->data();
  }
  args.x = call.x.data();
  args.blocks = static_cast<const uint8_t*>(call.blocks.data());
  args.scales = static_cast<const uint8_t*>(call.scales.data());
  args.offsets = call.offsets.data<int32_t>();
  args.rows = call.x.size(0);
  args.n = n;
  args.k = k;
  args.experts = static_cast<int>(experts);
  args.dtype = call.x.dtype();
  Tensor out = empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

void check_indices(const Mxfp4GroupedLinearArgs& args) {
  int32_t first = 0;
  for (int e = 0; e <= args.experts; ++e) {
    if (args.offsets[e] < first || args.offsets[e] > args.rows) {
      fail_index("mxfp4_grouped_linear: offsets[", e, "] is ", args.offsets[e], "; expected from ",
                 first, " to the ", args.rows, " rows of x");
    }
    first = args.offsets[e];
  }
}

}  // namespace rtp_llm::glue
