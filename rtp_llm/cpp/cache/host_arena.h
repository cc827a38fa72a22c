// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rtp_llm {

// A file in memory that other processes may map, grown array by array: HostArrays that are made
// while a Scope of it exists lie in it, each on pages of its own.
class HostArena {
 public:
  HostArena();  // throws std::system_error
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Maps `bytes` more zeroed bytes, which the caller unmaps. Throws std::bad_alloc.
  void* Map(size_t bytes);

  // Where memory that Map() gave lies in the file; -1 for other memory.
  int64_t OffsetOf(const void* memory) const;

  int descriptor() const { return descriptor_; }
  size_t size() const { return size_; }

  // The arena of the arrays that this thread makes until the scope ends; null: each has its own
  // anonymous pages.
  class Scope {
   public:
    explicit Scope(HostArena* arena);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HostArena* const before_;
  };
  static HostArena* current();

 private:
  struct Part {
    const char* memory;
    size_t bytes;
    size_t offset;
  };
  std::vector<Part> parts_;
  int descriptor_ = -1;
  size_t size_ = 0;
};

}  // namespace rtp_llm
