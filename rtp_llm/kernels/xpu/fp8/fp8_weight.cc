// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/fp8/fp8_weight.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

RTP_LLM_OPERATOR(fp8_weight_linear)
void fp8_weight_linear(Queue& queue, const Fp8WeightLinearArgs& args) {
  WeightProduct<Fp8Weight> product = {};
  WeightRows& rows = product.rows;
  rows.x = args.x;
  rows.bias = args.bias;
  rows.out = args.out;
  rows.rows = args.rows;
  rows.n = rows.bias_stride = args.n;
  rows.k = rows.columns = args.k;
  rows.x_stride = args.x_stride;
  rows.experts = 1;
  product.weight = {args.weight,     args.scales,        args.k,         args.weight_stride,
                    args.block_rows, args.block_columns, args.row_scales};
  submit(queue,
         {"fp8_weight_kernel", entry("fp8_product", args.dtype), weight_groups(rows), kWeightItems},
         product);
}

}  // namespace rtp_llm::xpu
