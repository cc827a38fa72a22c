// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/xpu/device.h"

namespace rtp_llm::xpu {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + sycl::exp(-x)); }

float apply(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kGelu:
      // erfc, for 1 + erf(x) loses its digits where x is far below zero.
      return 0.5f * x * sycl::erfc(x * -0.7071067812f);
    case Activation::kGeluTanh:
      // 0.5 x (1 + tanh(u)) = x sigmoid(2u)
      return x * sigmoid(2.0f * 0.7978845608f * (x + 0.044715f * x * x * x));
  }
}

}  // namespace

// An item per element.
template <class T>
void gated_activation(const GatedActivationArgs& args) {
  const Group group = this_group();
  const int64_t index = group_index(group) * group_items(group) + item_index(group);
  if (index >= args.rows * args.size) return;
  const T* const gate =
      static_cast<const T*>(args.x) + index / args.size * args.x_stride + index % args.size;
  float value = apply(args.activation, static_cast<float>(gate[0]));
  if (args.up != 0) value *= static_cast<float>(gate[args.up]);
  static_cast<T*>(args.out)[index] = static_cast<T>(value);
}

}  // namespace rtp_llm::xpu

RTP_LLM_XPU_KERNELS(gated_activation, rtp_llm::GatedActivationArgs)
