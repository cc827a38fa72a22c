// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/on_queue.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// Declared in shim_xpu.h, which also includes headers that glue on the stable ABI may not see. The
// stream is a sycl::queue*.
extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_get_current_xpu_stream(int32_t device_index,
                                                                              void** ret_stream);

namespace rtp_llm::xpu {

OnQueue::OnQueue(const glue::Tensor& tensor) {
  void* stream = nullptr;
  const AOTITorchError error = aoti_torch_get_current_xpu_stream(tensor.device_index(), &stream);
  RTP_LLM_CHECK(error == AOTI_TORCH_SUCCESS && stream != nullptr,
                "torch has no current stream on XPU device ", tensor.device_index());
  queue_ = static_cast<Queue*>(stream);
}

OnQueue::~OnQueue() = default;

}  // namespace rtp_llm::xpu
