// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/host_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace rtp_llm {
namespace {

thread_local HostArena* current_arena = nullptr;

}  // namespace

HostArena::HostArena() : descriptor_(memfd_create("rtp_llm_plan", MFD_CLOEXEC)) {
  if (descriptor_ < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make shared memory");
  }
}

HostArena::~HostArena() { close(descriptor_); }

void* HostArena::Map(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t rounded = (bytes + page - 1) / page * page;
  if (ftruncate(descriptor_, static_cast<off_t>(size_ + rounded)) != 0) throw std::bad_alloc();
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      descriptor_, static_cast<off_t>(size_));
  if (memory == MAP_FAILED) throw std::bad_alloc();
  parts_.push_back({static_cast<const char*>(memory), rounded, size_});
  size_ += rounded;
  return memory;
}

int64_t HostArena::OffsetOf(const void* memory) const {
  const char* place = static_cast<const char*>(memory);
  for (const Part& part : parts_) {
    if (place >= part.memory && place < part.memory + part.bytes) {
      return static_cast<int64_t>(part.offset) + (place - part.memory);
    }
  }
  return -1;
}

HostArena::Scope::Scope(HostArena* arena) : before_(current_arena) { current_arena = arena; }
HostArena::Scope::~Scope() { current_arena = before_; }

HostArena* HostArena::current() { return current_arena; }

}  // namespace rtp_llm
