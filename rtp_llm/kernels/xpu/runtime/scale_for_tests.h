// SPDX-License-Identifier: Apache-2.0
// The arguments of the smallest kernel.
#pragma once

namespace rtp_llm::xpu {

struct ScaleArgs {
  void* x;
  int size;
  float factor;
};

}  // namespace rtp_llm::xpu
