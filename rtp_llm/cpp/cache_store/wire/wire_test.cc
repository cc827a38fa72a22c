// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/wire/wire.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "rtp_llm/cpp/cache_store/net/socket.h"

namespace rtp_llm {
namespace {

using Status = FrameReader::Status;

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    near = Socket(fds[0]);
    far = Socket(fds[1]);
  }
  void Send(const std::string& bytes) const {
    ASSERT_EQ(send(far.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Socket near;
  Socket far;
};

uint32_t Number(std::mt19937* random) { return static_cast<uint32_t>((*random)()); }

LoadMessage Message(std::mt19937* random) {
  LoadMessage message;
  message.timeout_ms = 1 + (*random)() % kMaxTimeoutMs;
  message.query.request = std::string(1 + (*random)() % kMaxRequestBytes, 'r');
  message.query.layer = (*random)();
  message.query.partition = {static_cast<uint16_t>(4), static_cast<uint16_t>((*random)() % 4)};
  for (size_t i = 0, count = 1 + (*random)() % 40; i < count; ++i) {
    const uint64_t content = static_cast<uint64_t>((*random)()) << 32 | (*random)();
    message.query.keys.push_back({Number(random) % 5, Number(random), content});
    message.query.rows.push_back(1 + (*random)() % 100);
    message.query.row_bytes.push_back(1 + (*random)() % 5000);
  }
  return message;
}

TEST(WireTest, WhatWasEncodedComesBack) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const LoadMessage sent = Message(&random);
    LoadMessage got;
    ASSERT_TRUE(DecodeLoad(EncodeLoad(sent), &got));
    EXPECT_EQ(got.timeout_ms, sent.timeout_ms);
    EXPECT_EQ(got.query.request, sent.query.request);
    EXPECT_EQ(got.query.layer, sent.query.layer);
    EXPECT_EQ(got.query.partition.index, sent.query.partition.index);
    EXPECT_EQ(got.query.keys, sent.query.keys);
    EXPECT_EQ(got.query.rows, sent.query.rows);
    EXPECT_EQ(got.query.row_bytes, sent.query.row_bytes);
    EXPECT_EQ(QueryBytes(got.query), QueryBytes(sent.query));
  }
  Hello hello;
  ASSERT_TRUE(DecodeHello(EncodeHello({5, 1, "a model"}), &hello));
  EXPECT_EQ(hello.version, 5u);
  EXPECT_EQ(hello.fingerprint, "a model");
}

TEST(WireTest, LimitsOfALoad) {
  std::mt19937 random(4);
  const LoadMessage good = Message(&random);
  LoadMessage got;
  const auto refused = [&](void (*change)(LoadMessage*)) {
    LoadMessage bad = good;
    change(&bad);
    return !DecodeLoad(EncodeLoad(bad), &got);
  };
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->timeout_ms = 0; }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->timeout_ms = kMaxTimeoutMs + 1; }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->query.request.clear(); }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->query.request.assign(257, 'r'); }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->query.partition = {4, 4}; }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->query.partition = {0, 0}; }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->query.keys.clear(); }));
  EXPECT_TRUE(refused([](LoadMessage* bad) { bad->query.rows[0] = 0; }));
  EXPECT_TRUE(refused([](LoadMessage* bad) {
    bad->query.rows[0] = 1 << 30;
    bad->query.row_bytes[0] = 1 << 30;
  }));
}

// Whatever the bytes are, decoding ends, and reads nothing beyond them (asan sees to that).
TEST(WireTest, RandomBodies) {
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::string body = EncodeLoad(Message(&random));
    if (round % 3 == 0) body.resize(random() % (body.size() + 1));
    for (int i = 0, changes = 1 + static_cast<int>(random() % 4); i < changes; ++i) {
      if (!body.empty()) body[random() % std::min<size_t>(body.size(), 24)] = random();
    }
    LoadMessage load;
    if (DecodeLoad(body, &load)) {
      ASSERT_LE(load.query.keys.size(), kMaxLoadBlocks);
      ASSERT_EQ(EncodeLoad(load).size(), body.size());
    }
    Hello hello;
    if (DecodeHello(body, &hello)) {
      ASSERT_LE(hello.fingerprint.size(), body.size());
    }
  }
}

TEST(FrameReaderTest, FramesInPiecesAndNothingBeyondThem) {
  const Pair pair;
  const std::string bytes = Encode({FrameType::kData, TransferCode::kBufferTimeout, 9, 5, "why"});
  FrameReader reader;
  Frame frame;
  for (const char byte : bytes) {
    ASSERT_EQ(reader.Read(pair.near.fd(), &frame), Status::kBlocked);
    pair.Send(std::string(1, byte));
  }
  pair.Send("after");
  ASSERT_EQ(reader.Read(pair.near.fd(), &frame), Status::kFrame);
  EXPECT_EQ(frame.code, TransferCode::kBufferTimeout);
  EXPECT_EQ(frame.id, 9u);
  EXPECT_EQ(frame.payload_bytes, 5u);
  EXPECT_EQ(frame.body, "why");
  char rest[8];
  EXPECT_EQ(recv(pair.near.fd(), rest, sizeof(rest), 0), 5);
}

TEST(FrameReaderTest, AClosedSocketIsNoFrame) {
  Pair pair;
  pair.Send(Encode({FrameType::kCancel, TransferCode::kNone, 1, 0, ""}).substr(0, 20));
  pair.far.Close();
  FrameReader reader;
  Frame frame;
  EXPECT_EQ(reader.Read(pair.near.fd(), &frame), Status::kClosed);
}

// A length that no frame of its type has is refused before its body is waited for.
TEST(FrameReaderTest, LengthsAreNotBelieved) {
  for (const uint32_t length : {1u, 5000u, 0x7fffffffu, 0xffffffffu}) {
    const Pair pair;
    std::string bytes = Encode({FrameType::kCancel, TransferCode::kNone, 1, 0, ""});
    std::memcpy(&bytes[24], &length, sizeof(length));
    pair.Send(bytes);
    FrameReader reader;
    Frame frame;
    EXPECT_EQ(reader.Read(pair.near.fd(), &frame), Status::kBad) << length;
  }
}

TEST(FrameReaderTest, AnyBitThatFlipsIsSeen) {
  std::mt19937 random(6);
  const std::string good =
      Encode({FrameType::kLoad, TransferCode::kNone, 77, 0, EncodeLoad(Message(&random))});
  for (size_t bit = 0; bit < 8 * good.size(); bit += 1 + random() % 7) {
    const Pair pair;
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    pair.Send(bytes);
    FrameReader reader;
    Frame frame;
    const Status status = reader.Read(pair.near.fd(), &frame);
    // A body that seems longer is waited for; the connection's own time ends that.
    const bool in_length = bit / 8 >= 24 && bit / 8 < 28;
    EXPECT_TRUE(status == Status::kBad || (in_length && status == Status::kBlocked)) << bit;
  }
}

}  // namespace
}  // namespace rtp_llm
