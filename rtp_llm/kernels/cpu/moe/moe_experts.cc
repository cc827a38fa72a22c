// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/moe/moe_experts.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/gemm/linear.h"

namespace rtp_llm::cpu {

RTP_LLM_OPERATOR(grouped_linear)
void grouped_linear(const GroupedLinearArgs& args, const ParallelFor& parallel) {
  const int64_t element = element_size(args.dtype);
  LinearArgs product = {};
  product.dtype = args.dtype;
  product.n = product.out_stride = args.n;
  product.k = product.x_stride = product.weight_stride = args.k;
  for (int e = 0; e < args.experts; ++e) {
    const int64_t first = args.offsets[e];
    product.m = args.offsets[e + 1] - first;
    product.x = static_cast<const char*>(args.x) + first * args.k * element;
    product.weight = static_cast<const char*>(args.weight) + e * args.n * args.k * element;
    product.out = static_cast<char*>(args.out) + first * args.n * element;
    run_linear(product, parallel);
  }
}

}  // namespace rtp_llm::cpu
