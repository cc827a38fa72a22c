// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/activation/activation.h"

#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

void gated_activation(Queue& queue, const GatedActivationArgs& args) {
  const int64_t groups = ceil_div(args.rows * args.size, kMostItems);
  const std::string kernel = entry("gated_activation", args.dtype);
  submit(queue, {"activation_kernel", kernel, groups, kMostItems}, args);
}

}  // namespace rtp_llm::xpu
