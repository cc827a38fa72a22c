// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/gguf/gguf_linear.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

GgufWeight weight_of(GgufType type, const uint8_t* blocks, int64_t columns) {
  const GgufTypeInfo& info = info_of(type);
  return {blocks,
          gguf_row_bytes(type, columns),
          0,
          info.bytes,
          info.columns,
          type,
          gguf_codes_of(type)};
}

WeightProduct<GgufWeight> product_of(const GgufLinearArgs& args) {
  WeightProduct<GgufWeight> product = {};
  WeightRows& rows = product.rows;
  rows.x = args.x;
  rows.bias = args.bias;
  rows.out = args.out;
  rows.rows = args.m;
  rows.n = args.n;
  rows.k = rows.columns = args.k;
  rows.x_stride = args.x_stride;
  rows.float_result = args.out_dtype != args.dtype;
  // With 16 bits, too, x stays as it is: that is as fast here, and no less exact.
  const bool rounds = info_of(args.type).interleaved && args.activation_bits == 8;
  rows.rounded = rounds ? kGgufGroupColumns : 0;
  product.weight = weight_of(args.type, args.blocks, args.k);
  return product;
}

void multiply(Queue& queue, const WeightProduct<GgufWeight>& product, DType dtype) {
  submit(queue,
         {"gguf_linear_kernel", entry("gguf_product", dtype), weight_groups(product.rows),
          kWeightItems},
         product);
}

}  // namespace

RTP_LLM_OPERATOR(gguf_linear)
void gguf_linear(Queue& queue, const GgufLinearArgs& args) {
  multiply(queue, product_of(args), args.dtype);
}

RTP_LLM_OPERATOR(gguf_grouped_linear)
void gguf_grouped_linear(Queue& queue, const GgufGroupedLinearArgs& args) {
  WeightProduct<GgufWeight> product = product_of(args.linear);
  product.rows.offsets = args.offsets;
  product.rows.experts = args.experts;
  product.rows.bias_stride = args.bias_stride;
  product.weight.expert_bytes = args.blocks_stride;
  multiply(queue, product, args.linear.dtype);
}

RTP_LLM_OPERATOR(gguf_interleave)
void gguf_interleave(Queue& /*queue*/, const GgufInterleaveArgs& /*args*/) {}

RTP_LLM_OPERATOR(gguf_embedding)
void gguf_embedding(Queue& queue, const GgufEmbeddingArgs& args) {
  const GgufRowsArgs rows = {args, weight_of(args.type, args.blocks, args.columns)};
  const int64_t items = items_for(args.columns / kGgufGroupColumns);
  submit(queue, {"gguf_linear_kernel", entry("gguf_rows", args.dtype), args.count, items}, rows);
}

}  // namespace rtp_llm::xpu
