// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "rtp_llm/cpp/cache/host_arena.h"

namespace rtp_llm {

// A fixed array of plain numbers on pages of its own: the size is reserved once, a page costs
// memory only once it is written, and a device may register (pin) the range. Starts as zeros. It is
// shared with other processes where a HostArena::Scope says so.
template <typename T>
class HostArray {
 public:
  explicit HostArray(size_t size) : size_(size) {
    if (size == 0) return;
    if (HostArena* arena = HostArena::current()) {
      data_ = static_cast<T*>(arena->Map(size * sizeof(T)));
      return;
    }
    void* memory = mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
  }
  ~HostArray() {
    if (data_ != nullptr) munmap(data_, size_ * sizeof(T));
  }
  HostArray(HostArray&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
  }
  HostArray(const HostArray&) = delete;
  HostArray& operator=(const HostArray&) = delete;
  HostArray& operator=(HostArray&&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace rtp_llm
