// SPDX-License-Identifier: Apache-2.0
// Whatever arrives at the port, the server keeps running and retains nothing of it.

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "rtp_llm/cpp/cache_store/transfer/transfer_fixture.h"
#include "rtp_llm/cpp/cache_store/wire/wire.h"

namespace rtp_llm {
namespace {

std::string HelloFrame() {
  return Encode({FrameType::kHello, TransferCode::kNone, 0, 0, EncodeHello({1, 1, "model"})});
}

std::string LoadFrame(uint64_t id, const std::string& request, size_t blocks) {
  LoadMessage message;
  message.timeout_ms = kMaxTimeoutMs;
  message.query.request = request;
  for (size_t i = 0; i < blocks; ++i) {
    message.query.keys.push_back({0, static_cast<uint32_t>(i), i * 977 + 5});
    message.query.rows.push_back(2);
    message.query.row_bytes.push_back(Pool::kRowBytes);
  }
  return Encode({FrameType::kLoad, TransferCode::kNone, id, 0, EncodeLoad(message)});
}

// Connected, and blocking.
Socket Connected(const std::string& address) {
  std::string error;
  size_t next = 0;
  Socket socket = BeginConnect(address, &next, &error);
  EXPECT_TRUE(socket) << error;
  pollfd entry{socket.fd(), POLLOUT, 0};
  poll(&entry, 1, -1);
  return socket;
}

void Send(const Socket& socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t taken = send(socket.fd(), &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
    if (taken < 0 && errno != EAGAIN) return;  // it has had enough
    if (taken > 0) sent += static_cast<size_t>(taken);
  }
}

TEST(HostilePeerTest, RandomBytesAndBrokenFrames) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  Pool source(1, 20, 1);
  StoreAll(store.get(), "r", &source);
  std::mt19937 random(2);
  constexpr int kRounds = 150;
  for (int round = 0; round < kRounds; ++round) {
    const Socket socket = Connected(server->address());
    std::string bytes;
    if (round % 3 != 0) bytes = HelloFrame();
    if (round % 3 == 2) bytes += LoadFrame(1, "r", 20) + LoadFrame(2, "unknown", 3);
    for (size_t i = 0; i < 4; ++i) {
      if (!bytes.empty() && round % 2 == 0) bytes[random() % bytes.size()] = random();
    }
    for (size_t i = 0, count = random() % 200; i < count; ++i) bytes += static_cast<char>(random());
    Send(socket, bytes);
  }
  // Clients that still wait to be accepted do not count as connections yet.
  Until([&] { return server->counters().accepted == kRounds; });
  Until([&] { return server->counters().connections == 0; });
  EXPECT_GT(server->counters().protocol_errors, 50);
  const auto client = MakeClient();
  Pool target(1, 20, 3);
  const auto load = client->StartLoad(Request(server->address(), "r", &target));
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kNone);
  store->End("r");
  ExpectIdle(*store);
}

TEST(HostilePeerTest, NothingButAHelloComesFirst) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  const Socket socket = Connected(server->address());
  Send(socket, LoadFrame(1, "r", 20));
  Until([&] { return server->counters().protocol_errors == 1; });
  EXPECT_EQ(server->counters().loads, 0);
}

// Asks for more than a connection may wait for, and never reads an answer.
TEST(HostilePeerTest, LoadsWithoutEndAreRefusedAndThenNotRead) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  {
    const Socket socket = Connected(server->address());
    Send(socket, HelloFrame());
    for (uint64_t id = 0; id < 3000; ++id) {
      std::string bytes = LoadFrame(id, "r" + std::to_string(id), 100);
      size_t sent = 0;
      for (int tries = 0; sent < bytes.size() && tries < 20;) {
        const ssize_t taken = send(socket.fd(), &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
        if (taken > 0) {
          sent += static_cast<size_t>(taken);
        } else {
          // Before it has all that it waits for it only has to wait for a core.
          if (store->stats().waiting_loads > 600) ++tries;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
      if (sent < bytes.size()) break;  // it reads no more
      ASSERT_LE(store->stats().waiting_loads, 1024);
      ASSERT_LE(store->stats().waiting_blocks, 64 << 10);
    }
    Until([&] { return store->stats().waiting_loads > 600; });
  }
  Until([&] { return server->counters().connections == 0; });
  ExpectIdle(*store);
  EXPECT_EQ(store->stats().requests, 0);
}

TEST(HostilePeerTest, TheSameNumberTwiceCutsTheConnection) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  const Socket socket = Connected(server->address());
  Send(socket, HelloFrame() + LoadFrame(1, "r", 1) + LoadFrame(1, "r", 1));
  Until([&] { return server->counters().protocol_errors == 1; });
  Until([&] { return server->counters().connections == 0; });
  ExpectIdle(*store);
}

TEST(HostilePeerTest, MoreConnectionsThanAllowedAreClosed) {
  const auto store = BlockStore::Make();
  TransferServerOptions options;
  options.fingerprint = "model";
  options.max_connections = 2;
  const TransferServer server(store, options);
  const Socket first = Connected(server.address());
  const Socket second = Connected(server.address());
  for (const Socket* welcome : {&first, &second}) Send(*welcome, HelloFrame());
  char first_byte = 0;
  for (const Socket* welcome : {&first, &second}) {
    Until([&] { return recv(welcome->fd(), &first_byte, 1, MSG_DONTWAIT) == 1; });
  }
  Until([&] { return server.counters().connections == 2; });
  const Socket third = Connected(server.address());
  Until([&] { return server.counters().refused == 1; });
  char byte = 0;
  Until([&] { return recv(third.fd(), &byte, 1, MSG_DONTWAIT) == 0; });
}

}  // namespace
}  // namespace rtp_llm
