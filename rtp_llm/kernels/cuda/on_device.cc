// SPDX-License-Identifier: Apache-2.0
// torch's header declares these functions for CUDA only; ROCm has the same ones.
#define USE_CUDA
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {

OnDevice::OnDevice(const glue::Tensor& tensor) {
  const int32_t device = tensor.device_index();
  CUDAGuardHandle guard = nullptr;
  RTP_LLM_CHECK(aoti_torch_create_cuda_guard(device, &guard) == AOTI_TORCH_SUCCESS,
                "torch failed to make device ", device, " the current one");
  guard_ = guard;
  if (aoti_torch_get_current_cuda_stream(device, &stream_) != AOTI_TORCH_SUCCESS) {
    aoti_torch_delete_cuda_guard(guard);
    glue::fail("torch failed to tell the current stream of device ", device);
  }
}

OnDevice::~OnDevice() { aoti_torch_delete_cuda_guard(static_cast<CUDAGuardHandle>(guard_)); }

}  // namespace rtp_llm::cuda
