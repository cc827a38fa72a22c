// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "rtp_llm/kernels/common/moe/calls.h"
#include "rtp_llm/kernels/common/moe/mxfp4.h"

namespace rtp_llm::glue {

namespace {

// What both products have in common; `name` is the operator's.
template <class Args, class Call>
Prepared<Args, Tensor> with_rows(const Call& call, const Tensor& codes, const std::string& name) {
  const std::string x = name + ": x";
  const std::string packed = name + ": codes";
  check_float_dtype(call.x, x.c_str());
  check_dim(call.x, 2, x.c_str());
  check_contiguous(call.x, x.c_str());
  const int64_t k = call.x.size(1);
  RTP_LLM_CHECK(k % kMxfp4Block == 0, x, " is ", call.x.describe(),
                "; expected columns in whole blocks of ", kMxfp4Block);
  check_dtype(codes, DType::kInt8, packed.c_str());
  check_dim(codes, 3, packed.c_str());
  check_contiguous(codes, packed.c_str());
  RTP_LLM_CHECK(codes.size(2) * 2 == k, packed, " is ", codes.describe(), " and x ",
                call.x.describe(), "; expected a byte for every two columns");
  const int64_t experts = codes.size(0);
  check_index(call.offsets, (name + ": offsets").c_str());
  check_sizes(call.offsets, {experts + 1}, (name + ": offsets").c_str());
  Args args = {};
  if (call.bias.has_value()) {
    const std::string bias = name + ": bias";
    check_dtype(*call.bias, call.x.dtype(), bias.c_str());
    check_sizes(*call.bias, {experts, codes.size(1)}, bias.c_str());
    check_contiguous(*call.bias, bias.c_str());
    args.bias = call.bias->data();
  }
  args.x = call.x.data();
  args.blocks = static_cast<const uint8_t*>(codes.data());
  args.offsets = call.offsets.template data<int32_t>();
  args.rows = call.x.size(0);
  args.n = codes.size(1);
  args.k = k;
  args.experts = static_cast<int>(experts);
  args.dtype = call.x.dtype();
  Tensor out = empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace

Prepared<Mxfp4GroupedLinearArgs, Tensor> prepare(const Mxfp4GroupedLinearCall& call) {
  auto made = with_rows<Mxfp4GroupedLinearArgs>(call, call.blocks, "mxfp4_grouped_linear");
  auto& args = made.args;
  check_dtype(call.scales, DType::kInt8, "mxfp4_grouped_linear: scales");
  check_sizes(call.scales, {args.experts, args.n, args.k / kMxfp4Block},
              "mxfp4_grouped_linear: scales");
  check_contiguous(call.scales, "mxfp4_grouped_linear: scales");
  args.scales = static_cast<const uint8_t*>(call.scales.data());
  return made;
}

Prepared<Table4GroupedLinearArgs, Tensor> prepare(const Table4GroupedLinearCall& call) {
  constexpr int64_t kHalfBlock = kMxfp4Block / 2;
  auto made = with_rows<Table4GroupedLinearArgs>(call, call.codes, "table4_grouped_linear");
  auto& args = made.args;
  check_dtype(call.table, DType::kFloat32, "table4_grouped_linear: table");
  check_sizes(call.table, {16}, "table4_grouped_linear: table");
  check_contiguous(call.table, "table4_grouped_linear: table");
  args.table = call.table.data<float>();
  check_dim(call.scales, 3, "table4_grouped_linear: scales");
  check_contiguous(call.scales, "table4_grouped_linear: scales");
  const int64_t groups = call.scales.size(2);
  RTP_LLM_CHECK(args.k == 0 || (groups > 0 && args.k % (groups * kHalfBlock) == 0),
                "table4_grouped_linear: scales is ", call.scales.describe(), " and x ",
                call.x.describe(), "; expected a scale for groups of a multiple of ", kHalfBlock,
                " columns");
  check_sizes(call.scales, {args.experts, args.n, groups}, "table4_grouped_linear: scales");
  args.group = groups == 0 ? kHalfBlock : args.k / groups;
  if (!call.row_scales.has_value()) {
    check_dtype(call.scales, DType::kFloat32, "table4_grouped_linear: scales");
    args.float_scales = call.scales.data<float>();
    return made;
  }
  check_dtype(call.scales, DType::kInt8, "table4_grouped_linear: scales");
  RTP_LLM_CHECK(args.group == kHalfBlock, "table4_grouped_linear: scales is ",
                call.scales.describe(), "; expected one of e4m3 for each ", kHalfBlock, " columns");
  check_dtype(*call.row_scales, DType::kFloat32, "table4_grouped_linear: row_scales");
  check_sizes(*call.row_scales, {args.experts, args.n}, "table4_grouped_linear: row_scales");
  check_contiguous(*call.row_scales, "table4_grouped_linear: row_scales");
  args.scales = static_cast<const uint8_t*>(call.scales.data());
  args.row_scales_of = call.row_scales->data<float>();
  return made;
}

void check_indices(const Mxfp4GroupedLinearArgs& args) {
  check_offsets(args.offsets, args.experts, args.rows, "mxfp4_grouped_linear");
}

void check_indices(const Table4GroupedLinearArgs& args) {
  check_offsets(args.offsets, args.experts, args.rows, "table4_grouped_linear");
}

}  // namespace rtp_llm::glue
