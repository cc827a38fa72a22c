// SPDX-License-Identifier: Apache-2.0
// Operators of the bridge itself, torch.ops.rtp_llm_xpu_bridge: what tests ask about the device,
// and the copies that no operator of the engine uses.
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/bridge/host_queue.h"
#include "rtp_llm/kernels/xpu/kv_cache/copy.h"
#include "rtp_llm/kernels/xpu/on_queue.h"

namespace rtp_llm::xpu {
namespace {

using glue::Tensor;

std::string device_name() { return host_queue().get_device().get_info<sycl::info::device::name>(); }

bool has_float16() { return host_queue().get_device().has(sycl::aspect::fp16); }

// Rows of two matrices of one shape and dtype; strides are free.
void copy_rows(const Tensor& to, const Tensor& from) {
  glue::check_same_sizes(to, from, "strided_copy: to");
  const int64_t element = element_size(to.dtype());
  const OnQueue device(to);
  strided_copy(device.queue(), {to.data(), from.data(), to.size(0), to.size(1) * element,
                                to.stride(0) * element, from.stride(0) * element});
}

// int64 vectors: addresses and sizes in bytes.
void copy_regions(const Tensor& to, const Tensor& from, const Tensor& bytes, int64_t max_bytes) {
  const OnQueue device(to);
  batched_copy(device.queue(), {to.data<int64_t>(), from.data<int64_t>(), bytes.data<int64_t>(),
                                to.size(0), max_bytes});
}

}  // namespace

RTP_LLM_DECLARE_OPERATORS(rtp_llm_xpu_bridge, library) {
  library.def("device_name() -> str");
  library.def("has_float16() -> bool");
  library.def("strided_copy(Tensor(a!) to, Tensor source) -> ()");
  library.def("batched_copy(Tensor to, Tensor source, Tensor bytes, int max_bytes) -> ()");
}

RTP_LLM_REGISTER_KERNELS(rtp_llm_xpu_bridge, CompositeExplicitAutograd, library) {
  glue::implement_uncounted<device_name>(library, "device_name");
  glue::implement_uncounted<has_float16>(library, "has_float16");
}

RTP_LLM_REGISTER_KERNELS(rtp_llm_xpu_bridge, CPU, library) {
  glue::implement_uncounted<copy_rows>(library, "strided_copy");
  glue::implement_uncounted<copy_regions>(library, "batched_copy");
}

}  // namespace rtp_llm::xpu
