#include "rtp_llm/kernels/cpu/activation/sigmoid_gate.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

RTP_LLM_OPERATOR(sigmoid_gate, args.rows, grain_rows(args.size * 24))
void sigmoid_gate(const SigmoidGateArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    const Vec one = Vec::set(1.0f);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t group = row / args.inner;
      const int64_t index = row % args.inner;
      T* const x = static_cast<T*>(args.x) + group * args.x_group_stride + index * args.x_stride;
      const T* const gate = static_cast<const T*>(args.gate) + group * args.gate_group_stride +
                            index * args.gate_stride;
      for_vectors(args.size, [&](int64_t i, int count) {
        const Vec below = one + exp(Vec::zero() - Vec::load(gate + i, count));
        (Vec::load(x + i, count) / below).store(x + i, count);
      });
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
