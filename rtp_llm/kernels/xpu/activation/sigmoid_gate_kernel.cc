// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/activation/sigmoid_gate.h"
#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {

// A group per row.
RTP_LLM_OPERATOR(sigmoid_gate, args.rows, items_for(args.size))
template <class T>
void sigmoid_gate(const SigmoidGateArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  T* const x = static_cast<T*>(args.x) + args.x_at(row);
  const T* const gate = static_cast<const T*>(args.gate) + args.gate_at(row);
  for_items(group, args.size, [&](int64_t i) {
    const float below = 1.0f + sycl::exp(-static_cast<float>(gate[i]));
    x[i] = static_cast<T>(static_cast<float>(x[i]) / below);
  });
}

// A group per row.
RTP_LLM_OPERATOR(add_sigmoid_gated, args.rows, items_for(std::max(args.size, args.depth)))
template <class T>
void add_sigmoid_gated(const AddSigmoidGatedArgs& args) {
  const Group group = this_group();
  const int64_t row = group_index(group);
  T* const out = static_cast<T*>(args.out) + row * args.size;
  const T* const y = static_cast<const T*>(args.y) + row * args.size;
  const T* const x = static_cast<const T*>(args.x) + row * args.depth;
  const T* const gate = static_cast<const T*>(args.gate);
  float logit = 0.0f;
  for_items(group, args.depth, [&](int64_t i) {
    logit = sycl::fma(static_cast<float>(x[i]), static_cast<float>(gate[i]), logit);
  });
  const float weight = 1.0f / (1.0f + sycl::exp(-group_sum(group, logit)));
  for_items(group, args.size, [&](int64_t i) {
    out[i] =
        static_cast<T>(sycl::fma(static_cast<float>(y[i]), weight, static_cast<float>(out[i])));
  });
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(sigmoid_gate, rtp_llm::SigmoidGateArgs)
RTP_LLM_XPU_KERNELS(add_sigmoid_gated, rtp_llm::AddSigmoidGatedArgs)
