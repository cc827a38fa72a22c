// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace rtp_llm {

// A flag that poll() sees: readable from Set() until Clear().
class EventFd {
 public:
  EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~EventFd() { close(fd_); }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  // Neither can fail in a way that matters: a full counter is set, an empty one is clear.
  void Set() const {
    const uint64_t one = 1;
    while (write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  void Clear() const {
    uint64_t count = 0;
    while (read(fd_, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace rtp_llm
