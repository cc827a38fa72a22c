// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/gemm/wna16.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

void multiply(Queue& queue, const Wna16LinearArgs& args) {
  WeightProduct<Wna16Weight> product = {};
  WeightRows& rows = product.rows;
  rows.x = args.x;
  rows.bias = args.bias;
  rows.out = args.out;
  rows.offsets = args.offsets;
  rows.order = args.order;
  rows.rows = args.rows;
  rows.n = rows.bias_stride = args.n;
  rows.k = args.k;
  rows.x_stride = args.x_stride;
  rows.experts = args.experts;
  rows.columns = args.columns;
  rows.rounded = args.part;
  product.weight = {args.weight,
                    args.scale,
                    args.zero,
                    args.blocks(),
                    args.block_bytes(),
                    args.groups,
                    args.group_parts * args.part,
                    args.bits};
  submit(queue,
         {"wna16_kernel", entry("wna16_product", args.dtype), weight_groups(rows), kWeightItems},
         product);
}

}  // namespace

RTP_LLM_OPERATOR(wna16_linear)
void wna16_linear(Queue& queue, const Wna16LinearArgs& args) { multiply(queue, args); }

RTP_LLM_OPERATOR(wna16_grouped_linear)
void wna16_grouped_linear(Queue& queue, const Wna16LinearArgs& args) { multiply(queue, args); }

}  // namespace rtp_llm::xpu
