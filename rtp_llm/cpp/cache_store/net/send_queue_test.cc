// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/send_queue.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "rtp_llm/cpp/cache_store/net/socket.h"
#include "rtp_llm/cpp/cache_store/wire/crc32c.h"

namespace rtp_llm {
namespace {

constexpr size_t kBudget = 1 << 20;

struct Line {
  Line() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    near = Socket(fds[0]);
    far = Socket(fds[1]);
  }
  // Everything that has come.
  std::string Received() const {
    std::string all;
    char bytes[4096];
    for (ssize_t got; (got = recv(far.fd(), bytes, sizeof(bytes), 0)) > 0;) {
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }
  Socket near;
  Socket far;
};

Outgoing Item(uint64_t id, const std::string& text, std::string* payload = nullptr,
              bool checksum = false) {
  Outgoing item;
  item.id = id;
  item.text = text;
  if (payload != nullptr) {
    const auto half = static_cast<uint32_t>(payload->size() / 2);
    item.payload = SpanCursor({{payload->data(), 2, half, half}});
  }
  item.checksum = checksum;
  return item;
}

TEST(SendQueueTest, TextsPayloadsAndChecksumsInOrder) {
  const Line line;
  std::string payload(3000, 'p');
  SendQueue queue;
  queue.Push(Item(1, "first"));
  queue.Push(Item(2, "second", &payload, true));
  queue.Push(Item(3, "third", &payload));
  EXPECT_EQ(queue.Pump(line.near.fd(), kBudget), SendQueue::Status::kIdle);
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_EQ(queue.payload_sent(), 6000u);
  const uint32_t crc = Crc32c(0, payload.data(), payload.size());
  const std::string trailer(reinterpret_cast<const char*>(&crc), sizeof(crc));
  EXPECT_EQ(line.Received(), "firstsecond" + payload + trailer + "third" + payload);
}

TEST(SendQueueTest, GoesOnWhereTheSocketWasFull) {
  const Line line;
  std::string payload(4 << 20, '\0');
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 131 >> 3);
  const auto lease = std::make_shared<int>(0);
  SendQueue queue;
  Outgoing item = Item(1, "head", &payload, true);
  item.lease = lease;
  queue.Push(std::move(item));
  std::string got;
  while (queue.Pump(line.near.fd(), kBudget) == SendQueue::Status::kMore) {
    EXPECT_EQ(lease.use_count(), 2) << "the memory is still read";
    got += line.Received();
  }
  EXPECT_EQ(lease.use_count(), 1);
  got += line.Received();
  const uint32_t crc = Crc32c(0, payload.data(), payload.size());
  EXPECT_TRUE(got == "head" + payload + std::string(reinterpret_cast<const char*>(&crc), 4));
}

TEST(SendQueueTest, DropsWhatWasNotBegun) {
  const Line line;
  std::string payload(4 << 20, 'p');
  SendQueue queue;
  queue.Push(Item(1, "one", &payload));
  queue.Push(Item(2, "two", &payload));
  EXPECT_EQ(queue.Pump(line.near.fd(), kBudget), SendQueue::Status::kMore);
  EXPECT_FALSE(queue.Drop(1)) << "it is under way";
  EXPECT_TRUE(queue.Drop(2));
  EXPECT_FALSE(queue.Drop(2));
  EXPECT_EQ(queue.size(), 1u);
}

TEST(SendQueueTest, AClosedSocketIsAFailure) {
  Line line;
  SendQueue queue;
  queue.Push(Item(1, "one"));
  line.far.Close();
  EXPECT_EQ(queue.Pump(line.near.fd(), kBudget), SendQueue::Status::kFailed);
}

TEST(SendQueueTest, StuckIsNoProgressOrTooLate) {
  const Line line;
  std::string payload(4 << 20, 'p');
  const auto now = SendQueue::Clock::now();
  const auto hour = std::chrono::hours(1);
  SendQueue queue;
  EXPECT_FALSE(queue.IsStuck(now + 10 * hour, hour)) << "nothing to send";
  Outgoing item = Item(1, "one", &payload);
  item.give_up = now + 3 * hour;
  queue.Push(std::move(item));
  EXPECT_EQ(queue.Pump(line.near.fd(), kBudget), SendQueue::Status::kMore);
  EXPECT_FALSE(queue.IsStuck(now, hour));
  EXPECT_TRUE(queue.IsStuck(now + 2 * hour, hour));
  EXPECT_FALSE(queue.IsStuck(now + 2 * hour, 24 * hour));
  EXPECT_TRUE(queue.IsStuck(now + 4 * hour, 24 * hour));
}

}  // namespace
}  // namespace rtp_llm
