// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/moe/table4.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

template <class Weight>
void multiply(Queue& queue, const char* kernel, const Mxfp4GroupedLinearArgs& args,
              const Weight& weight) {
  WeightProduct<Weight> product = {};
  WeightRows& rows = product.rows;
  rows.x = args.x;
  rows.bias = args.bias;
  rows.out = args.out;
  rows.offsets = args.offsets;
  rows.rows = args.rows;
  rows.n = rows.bias_stride = args.n;
  rows.k = rows.x_stride = rows.columns = args.k;
  rows.experts = args.experts;
  product.weight = weight;
  submit(queue, {"table4_kernel", entry(kernel, args.dtype), weight_groups(rows), kWeightItems},
         product);
}

}  // namespace

RTP_LLM_OPERATOR(mxfp4_grouped_linear)
void mxfp4_grouped_linear(Queue& queue, const Mxfp4GroupedLinearArgs& args) {
  multiply(queue, "mxfp4_product", args, Mxfp4Weight{args.blocks, args.scales, args.n, args.k});
}

RTP_LLM_OPERATOR(table4_grouped_linear)
void table4_grouped_linear(Queue& queue, const Table4GroupedLinearArgs& args) {
  const Table4Weight weight = {args.blocks,        args.scales, args.table, args.float_scales,
                               args.row_scales_of, args.n,      args.k,     args.group};
  multiply(queue, "table4_product", args, weight);
}

}  // namespace rtp_llm::xpu
