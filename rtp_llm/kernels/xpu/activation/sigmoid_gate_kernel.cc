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

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(sigmoid_gate, rtp_llm::SigmoidGateArgs)
