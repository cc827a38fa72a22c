// SPDX-License-Identifier: Apache-2.0
// While the bridge is loaded, torch's CPU tensors are made in USM: what a test fills with torch is
// what kernels read, and what kernels write is what the test compares.
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/bridge/host_queue.h"

namespace rtp_llm::xpu {
namespace {

constexpr size_t kAlignment = 64;

// In front of each tensor's bytes: their number, for MemoryUse.
int64_t& size_of(void* memory) {
  return *static_cast<int64_t*>(static_cast<void*>(static_cast<char*>(memory) - kAlignment));
}

void release(void* memory) {
  if (memory == nullptr) return;
  MemoryUse::add(-size_of(memory));
  sycl::free(&size_of(memory), host_queue());
}

class UsmAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0) {
      char* const whole = static_cast<char*>(
          sycl::aligned_alloc_shared(kAlignment, kAlignment + bytes, host_queue()));
      if (whole == nullptr) throw std::bad_alloc();
      memory = whole + kAlignment;
      size_of(memory) = static_cast<int64_t>(bytes);
      MemoryUse::add(size_of(memory));
    }
    return {memory, memory, &release, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

[[maybe_unused]] const bool kInUse = [] {
  c10::SetCPUAllocator(new UsmAllocator(), 1);
  return true;
}();

}  // namespace
}  // namespace rtp_llm::xpu
