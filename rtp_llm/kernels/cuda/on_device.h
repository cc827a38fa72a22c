// SPDX-License-Identifier: Apache-2.0
// Where a kernel runs: torch's current stream on the device of its tensors.
#pragma once

#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::cuda {

// That device is the current one as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(const glue::Tensor& tensor);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* stream() const { return stream_; }

 private:
  void* guard_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace rtp_llm::cuda
