// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/moe/moe_experts.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

RTP_LLM_OPERATOR(sum_experts, args.tokens,
                 grain_rows(args.size*(args.k + 1) * element_size(args.dtype)))
void sum_experts(const SumExpertsArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* y = static_cast<const T*>(args.y);
    for (int64_t t = begin; t < end; ++t) {
      T* out = static_cast<T*>(args.out) + t * args.size;
      const int32_t* places = args.places + t * args.k;
      const float* weights = args.weights + t * args.k;
      for_vectors(args.size, [&](int64_t i, int count) {
        Vec sum = Vec::zero();
        for (int j = 0; j < args.k; ++j) {
          if (places[j] < 0) continue;
          sum = fma(Vec::set(weights[j]), Vec::load(y + places[j] * args.size + i, count), sum);
        }
        sum.store(out + i, count);
      });
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
