// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace rtp_llm {

// A file descriptor that is closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Addresses are "host:port" or "[host]:port"; port 0 lets the system choose. All sockets are
// non-blocking. Who cannot be listened to or resolved is a std::runtime_error that names it.

Socket Listen(const std::string& address);
// An empty socket if no connection is pending, or the system lacks resources for another one.
Socket Accept(int listener);
// Begins to connect to the host's address number `*next`, or to a later one if that cannot be
// begun; `*next` is then the one after it. Returns an empty socket if none is left, and sets
// `error` to why the last attempt could not be begun. A name is looked up synchronously.
Socket BeginConnect(const std::string& address, size_t* next, std::string* error);
// Why connecting failed, once the socket is writable; empty when it did not.
std::string ConnectError(int fd);

std::string LocalAddress(int fd);
std::string PeerAddress(int fd);

}  // namespace rtp_llm
