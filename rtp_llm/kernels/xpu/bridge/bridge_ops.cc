// SPDX-License-Identifier: Apache-2.0
// Operators of the bridge itself, torch.ops.rtp_llm_xpu_bridge: what torch.xpu has where there is
// an XPU, what tests ask about the device, and the copies that no operator of the engine uses.
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/bridge/host_queue.h"
#include "rtp_llm/kernels/xpu/kv_cache/copy.h"
#include "rtp_llm/kernels/xpu/on_queue.h"

namespace rtp_llm::xpu {
namespace {

using glue::Tensor;

std::string device_name() { return host_queue().get_device().get_info<sycl::info::device::name>(); }

bool has_float16() { return host_queue().get_device().has(sycl::aspect::fp16); }

int64_t device_memory() {
  return static_cast<int64_t>(
      host_queue().get_device().get_info<sycl::info::device::global_mem_size>());
}

bool stream_is_done(int64_t stream) { return queue_of(stream).ext_oneapi_empty(); }

void synchronize_stream(int64_t stream) { queue_of(stream).wait_and_throw(); }

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
  library.def("device_memory() -> int");
  library.def("memory_used() -> int");
  library.def("peak_memory() -> int");
  library.def("reset_peak_memory() -> ()");
  library.def("new_stream() -> int");
  library.def("use_stream(int stream) -> int");
  library.def("stream_is_done(int stream) -> bool");
  library.def("synchronize_stream(int stream) -> ()");
  library.def("release_stream(int stream) -> ()");
  library.def("record_event(int stream) -> int");
  library.def("wait_event(int stream, int event) -> ()");
  library.def("event_is_done(int event) -> bool");
  library.def("synchronize_event(int event) -> ()");
  library.def("release_event(int event) -> ()");
  library.def("strided_copy(Tensor(a!) to, Tensor source) -> ()");
  library.def("batched_copy(Tensor to, Tensor source, Tensor bytes, int max_bytes) -> ()");
}

RTP_LLM_REGISTER_KERNELS(rtp_llm_xpu_bridge, CompositeExplicitAutograd, library) {
  glue::implement_uncounted<device_name>(library, "device_name");
  glue::implement_uncounted<has_float16>(library, "has_float16");
  glue::implement_uncounted<device_memory>(library, "device_memory");
  glue::implement_uncounted<MemoryUse::now>(library, "memory_used");
  glue::implement_uncounted<MemoryUse::peak>(library, "peak_memory");
  glue::implement_uncounted<MemoryUse::reset_peak>(library, "reset_peak_memory");
  glue::implement_uncounted<new_stream>(library, "new_stream");
  glue::implement_uncounted<use_stream>(library, "use_stream");
  glue::implement_uncounted<stream_is_done>(library, "stream_is_done");
  glue::implement_uncounted<synchronize_stream>(library, "synchronize_stream");
  glue::implement_uncounted<release_stream>(library, "release_stream");
  glue::implement_uncounted<record_event>(library, "record_event");
  glue::implement_uncounted<wait_event>(library, "wait_event");
  glue::implement_uncounted<event_is_done>(library, "event_is_done");
  glue::implement_uncounted<synchronize_event>(library, "synchronize_event");
  glue::implement_uncounted<release_event>(library, "release_event");
}

RTP_LLM_REGISTER_KERNELS(rtp_llm_xpu_bridge, CPU, library) {
  glue::implement_uncounted<copy_rows>(library, "strided_copy");
  glue::implement_uncounted<copy_regions>(library, "batched_copy");
}

}  // namespace rtp_llm::xpu
