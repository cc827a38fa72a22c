// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace rtp_llm {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr int kBacklog = 128;
// A peer that acknowledges nothing for so long is gone, whatever its machine does.
constexpr unsigned kSilenceMs = 10000;

Addresses Resolve(const std::string& address, int flags) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    throw std::runtime_error("\"" + address + "\" is no host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) throw std::runtime_error(address + ": " + gai_strerror(error));
  return Addresses(found, &freeaddrinfo);
}

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

void SetOptions(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMs);
}

Socket New(const addrinfo& address) {
  return Socket(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                       address.ai_protocol));
}

std::string Text(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  if (address.ss_family == AF_INET6) return "[" + std::string(host) + "]:" + port;
  return std::string(host) + ":" + port;
}

}  // namespace

Socket Listen(const std::string& address) {
  const Addresses found = Resolve(address, AI_PASSIVE);
  std::string error = "no address";
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    Socket socket = New(*each);
    if (socket) {
      SetOption(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (bind(socket.fd(), each->ai_addr, each->ai_addrlen) == 0 &&
          listen(socket.fd(), kBacklog) == 0) {
        return socket;
      }
    }
    error = std::strerror(errno);
  }
  throw std::runtime_error("cannot listen at " + address + ": " + error);
}

Socket Accept(int listener) {
  Socket socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) SetOptions(socket.fd());
  return socket;
}

Socket BeginConnect(const std::string& address, size_t* next, std::string* error) {
  try {
    const Addresses found = Resolve(address, 0);
    size_t number = 0;
    for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
      if (number++ < *next) continue;
      *next = number;
      Socket socket = New(*each);
      if (socket) {
        SetOptions(socket.fd());
        if (connect(socket.fd(), each->ai_addr, each->ai_addrlen) == 0 || errno == EINPROGRESS) {
          return socket;
        }
      }
      *error = std::strerror(errno);
    }
  } catch (const std::runtime_error& unresolved) {
    *error = unresolved.what();
  }
  return Socket();
}

std::string ConnectError(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? "" : std::strerror(error);
}

std::string LocalAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  return Text(address, size);
}

std::string PeerAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  return Text(address, size);
}

}  // namespace rtp_llm
