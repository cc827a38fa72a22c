// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/activation/sigmoid_gate.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// In two sums so that additions overlap.
template <class T>
float dot(const T* x, const T* y, int64_t size) {
  Vec even = Vec::zero();
  Vec odd = Vec::zero();
  int64_t i = 0;
  for (; i + 2 * Vec::kWidth <= size; i += 2 * Vec::kWidth) {
    even = fma(Vec::load(x + i), Vec::load(y + i), even);
    odd = fma(Vec::load(x + i + Vec::kWidth), Vec::load(y + i + Vec::kWidth), odd);
  }
  for_vectors(size - i, [&](int64_t offset, int count) {
    even = fma(Vec::load(x + i + offset, count), Vec::load(y + i + offset, count), even);
  });
  return (even + odd).sum();
}

}  // namespace

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

RTP_LLM_OPERATOR(add_sigmoid_gated, args.rows, grain_rows(args.size * 8 + args.depth * 4))
void add_sigmoid_gated(const AddSigmoidGatedArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* const gate = static_cast<const T*>(args.gate);
    for (int64_t row = begin; row < end; ++row) {
      T* const out = static_cast<T*>(args.out) + row * args.size;
      const T* const y = static_cast<const T*>(args.y) + row * args.size;
      const float logit = dot(static_cast<const T*>(args.x) + row * args.depth, gate, args.depth);
      const Vec one = Vec::set(1.0f);
      const Vec weight = one / (one + exp(Vec::set(-logit)));
      for_vectors(args.size, [&](int64_t i, int count) {
        fma(Vec::load(y + i, count), weight, Vec::load(out + i, count)).store(out + i, count);
      });
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
