// SPDX-License-Identifier: Apache-2.0
// Memory that a kernel needs while it runs, from torch's allocator.
#pragma once

#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// `bytes` on the device of `like`, aligned to 64 on the CPU. None are allocated for 0 bytes, as an
// empty tensor costs as much as any other.
class Scratch {
 public:
  Scratch(const Tensor& like, int64_t bytes) {
    if (bytes > 0) tensor_.emplace(empty(like, {bytes}, DType::kInt8));
  }
  void* data() const { return tensor_.has_value() ? tensor_->data() : nullptr; }

 private:
  OptionalTensor tensor_;
};

}  // namespace rtp_llm::glue
