// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace rtp_llm {
namespace {

void AwaitWritable(const Socket& socket) {
  pollfd entry{socket.fd(), POLLOUT, 0};
  EXPECT_EQ(poll(&entry, 1, -1), 1);
}

TEST(SocketTest, ConnectsAndKnowsItsAddresses) {
  for (const char* host : {"127.0.0.1:", "localhost:"}) {
    const Socket listener = Listen("127.0.0.1:0");
    EXPECT_FALSE(Accept(listener.fd())) << "nobody waits";
    const std::string address = LocalAddress(listener.fd());
    std::string error;
    size_t next = 0;
    Socket near;
    do {  // a name may have addresses where nobody listens
      near = BeginConnect(host + address.substr(address.find(':') + 1), &next, &error);
      ASSERT_TRUE(near) << error;
      AwaitWritable(near);
    } while (!ConnectError(near.fd()).empty());
    pollfd entry{listener.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, -1), 1);
    const Socket far = Accept(listener.fd());
    ASSERT_TRUE(far);
    EXPECT_EQ(PeerAddress(near.fd()), address);
    EXPECT_EQ(PeerAddress(far.fd()), LocalAddress(near.fd()));
  }
}

TEST(SocketTest, NobodyThere) {
  // Bound, so that no other program gets it, and not listening.
  const Socket bound(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(bound.fd(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)), 0);
  const std::string address = LocalAddress(bound.fd());
  std::string error;
  size_t next = 0;
  const Socket socket = BeginConnect(address, &next, &error);
  EXPECT_EQ(next, 1u);
  if (socket) {
    AwaitWritable(socket);
    error = ConnectError(socket.fd());
  }
  EXPECT_EQ(error, "Connection refused");
  EXPECT_FALSE(BeginConnect(address, &next, &error)) << "that was the only one";
}

TEST(SocketTest, AddressesThatAreNone) {
  for (const char* address : {"", "host", "host:", "127.0.0.1:none", "[::1"}) {
    std::string error;
    size_t next = 0;
    EXPECT_FALSE(BeginConnect(address, &next, &error)) << address;
    EXPECT_NE(error, "") << address;
    EXPECT_THROW(Listen(address), std::runtime_error) << address;
  }
}

TEST(SocketTest, AnAddressThatIsTaken) {
  const Socket listener = Listen("127.0.0.1:0");
  const std::string address = LocalAddress(listener.fd());
  try {
    Listen(address);
    ADD_FAILURE() << "it listens twice";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), "cannot listen at " + address + ": Address already in use");
  }
}

}  // namespace
}  // namespace rtp_llm
