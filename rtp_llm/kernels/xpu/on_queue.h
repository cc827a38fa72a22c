// SPDX-License-Identifier: Apache-2.0
// Where the kernels of an operator run. on_queue.cc asks torch; the tests' bridge has its own.
#pragma once

#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/xpu/queue.h"

// Operators of the XPU library; the tests' bridge registers them for CPU tensors.
#ifdef RTP_LLM_XPU_BRIDGE
#define RTP_LLM_XPU_OPERATORS(library) RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library)
#else
#define RTP_LLM_XPU_OPERATORS(library) RTP_LLM_REGISTER_KERNELS(rtp_llm, XPU, library)
#endif

namespace rtp_llm::xpu {

// The queue of torch's current stream on the device of a tensor. It is in order, and is not waited
// for: code that reads a result on the host synchronises, as with torch's own operators.
class OnQueue {
 public:
  explicit OnQueue(const glue::Tensor& tensor);
  ~OnQueue();
  OnQueue(const OnQueue&) = delete;
  OnQueue& operator=(const OnQueue&) = delete;

  Queue& queue() const { return *queue_; }

 private:
  Queue* queue_;
};

}  // namespace rtp_llm::xpu
