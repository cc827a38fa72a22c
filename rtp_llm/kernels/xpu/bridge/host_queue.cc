// SPDX-License-Identifier: Apache-2.0
// The bridge's end of on_queue.h: kernels run on one SYCL device for all CPU tensors.
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/bridge/host_queue.h"
#include "rtp_llm/kernels/xpu/on_queue.h"
#include "rtp_llm/kernels/xpu/runtime/kernel.h"

namespace rtp_llm::xpu {

// Never destroyed: tensors may outlive everything else.
sycl::queue& host_queue() {
  static auto* const queue = new sycl::queue(open_queue());
  return *queue;
}

OnQueue::OnQueue(const glue::Tensor& tensor) : queue_(&host_queue()) {
  const bool known =
      tensor.numel() == 0 ||
      sycl::get_pointer_type(tensor.data(), queue_->get_context()) != sycl::usm::alloc::unknown;
  RTP_LLM_CHECK(known, "a tensor, ", tensor.describe(),
                ", is not in USM: it was made before the bridge was loaded");
}

// CPU tensors are read as soon as an operator returns.
OnQueue::~OnQueue() { queue_->wait_and_throw(); }

}  // namespace rtp_llm::xpu
