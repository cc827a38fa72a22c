// SPDX-License-Identifier: Apache-2.0
// Server and client over loopback, and what may happen to the bytes between them.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache_store/transfer/transfer_fixture.h"

namespace rtp_llm {
namespace {

using std::chrono::milliseconds;

TEST(TransferTest, BlocksArriveAndNothingElseIsWritten) {
  for (const bool checksums : {true, false}) {
    const auto store = BlockStore::Make();
    const auto server = MakeServer(store);
    const auto client = MakeClient(checksums);
    Pool source(5, 40, 1);
    Pool target(5, 40, 2);
    const Pool before = target;
    StoreAll(store.get(), "r", &source);
    const auto load = client->StartLoad(Request(server->address(), "r", &target));
    ASSERT_TRUE(load->Wait(kTestTimeout));
    EXPECT_EQ(load->code(), TransferCode::kNone) << load->message();
    EXPECT_EQ(load->TakeArrived().size(), 5u);
    EXPECT_TRUE(target.Took(source, before));
    store->End("r");
    ExpectIdle(*store);
    EXPECT_EQ(store->TakeReleased().size(), 1u);
  }
}

// Prefill stores layer by layer from a thread of its own; several decode workers load at once, some
// change their mind, and requests end whenever they like.
TEST(TransferTest, ManyAtOnce) {
  constexpr int kRequests = 24;
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  Pool source(4, 30, 3);
  const auto decode = [&](unsigned seed) {
    std::mt19937 random(seed);
    const auto client = MakeClient(seed % 2 == 0);
    for (int request = 0; request < kRequests; ++request) {
      Pool target(4, 30, seed + 100);
      const Pool before = target;
      const auto load =
          client->StartLoad(Request(server->address(), std::to_string(request), &target));
      if (random() % 4 == 0) load->Stop(TransferCode::kCancelled, "");
      ASSERT_TRUE(load->Wait(kTestTimeout));
      if (load->code() == TransferCode::kNone) {
        EXPECT_TRUE(target.Took(source, before));
      } else {
        EXPECT_EQ(load->code(), TransferCode::kCancelled) << load->message();
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(decode, seed);
  for (int request = 0; request < kRequests; ++request) {
    StoreAll(store.get(), std::to_string(request), &source);
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  for (int request = 0; request < kRequests; ++request) store->End(std::to_string(request));
  ExpectIdle(*store);
  EXPECT_EQ(store->TakeReleased().size(), static_cast<size_t>(kRequests));
  EXPECT_EQ(store->stats().blocks, 0);
}

// As soon as a load is done its blocks are somebody else's: poison stays poison.
TEST(TransferTest, NothingIsWrittenAfterACancelledLoadIsDone) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  const auto client = MakeClient(true, 3);
  Pool source(6, 100, 5);
  StoreAll(store.get(), "r", &source);
  Pool target(6, 100, 6);
  std::mt19937 random(7);
  int cancelled = 0;
  for (int round = 0; round < 40; ++round) {
    LoadRequest request = Request(server->address(), "r", &target);
    // Every other load requests a layer that never arrives: it cannot finish before it is
    // cancelled, however fast the machine is.
    if (round % 2 == 0) request.layers.back().layer = 99;
    const auto load = client->StartLoad(std::move(request));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    load->Stop(TransferCode::kCancelled, "");
    ASSERT_TRUE(load->Wait(kTestTimeout));
    cancelled += load->code() == TransferCode::kCancelled;
    const std::vector<char> poison(target.bytes.size(), static_cast<char>(round));
    target.bytes = poison;
    std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(target.bytes == poison) << round;
  }
  EXPECT_GE(cancelled, 20);
  Until([&] { return client->stats().outstanding == 0; });
  store->End("r");
  ExpectIdle(*store);
}

TEST(TransferTest, DamagedBlocksAreSeenByTheirChecksum) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  Pool source(1, 20, 8);
  StoreAll(store.get(), "r", &source);
  constexpr size_t kWithinTheBlocks = 50000;
  const Proxy proxy(server->address(), [](size_t offset, std::string* bytes) {
    if (offset <= kWithinTheBlocks && kWithinTheBlocks < offset + bytes->size()) {
      (*bytes)[kWithinTheBlocks - offset] ^= 4;
    }
    return true;
  });
  const auto client = MakeClient(true, 1);
  Pool target(1, 20, 9);
  const auto load = client->StartLoad(Request(proxy.address(), "r", &target));
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kChecksum) << load->message();
  EXPECT_TRUE(load->TakeArrived().empty());
  const auto again = client->StartLoad(Request(proxy.address(), "r", &target));
  ASSERT_TRUE(again->Wait(kTestTimeout));
  EXPECT_EQ(again->code(), TransferCode::kNone) << "the connection goes on";
  store->End("r");
  ExpectIdle(*store);
}

TEST(TransferTest, DamagedFramesCutTheConnection) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  Pool source(1, 20, 8);
  StoreAll(store.get(), "r", &source);
  const Proxy proxy(server->address(), [](size_t offset, std::string* bytes) {
    if (offset > 0) (*bytes)[5] ^= 4;  // all but the welcome
    return true;
  });
  const auto client = MakeClient(true, 1);
  Pool target(1, 20, 9);
  const auto load = client->StartLoad(Request(proxy.address(), "r", &target));
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kPeerLost) << load->message();
  store->End("r");
  ExpectIdle(*store);
}

TEST(TransferTest, AConnectionCutAnywhereFailsTheLoadAndLeavesNothing) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  Pool source(2, 60, 10);
  StoreAll(store.get(), "r", &source);
  for (const size_t cut : {1u, 60u, 100u, 70000u, 400000u}) {
    const Proxy proxy(server->address(), [cut](size_t offset, std::string* bytes) {
      return offset + bytes->size() < cut;
    });
    const auto client = MakeClient(true, 1);
    Pool target(2, 60, 11);
    const auto load = client->StartLoad(Request(proxy.address(), "r", &target));
    ASSERT_TRUE(load->Wait(kTestTimeout));
    EXPECT_TRUE(load->code() == TransferCode::kPeerLost ||
                load->code() == TransferCode::kConnectFailed)
        << load->message();
    EXPECT_EQ(client->stats().outstanding, 0);
  }
  store->End("r");
  ExpectIdle(*store);
}

// The peer takes some bytes and then no more: prefill gets its blocks back, decode a time-out.
TEST(TransferTest, APeerThatStopsReadingIsCutOff) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store, milliseconds(100));
  Pool source(16, 200, 12);  // more than the buffers between the two hold
  std::atomic<bool> stopped{false};
  const Proxy proxy(server->address(), [&](size_t offset, std::string*) {
    while (offset > 500000 && !stopped) std::this_thread::sleep_for(milliseconds(1));
    return true;
  });
  const auto client = MakeClient(true, 1);
  Pool target(16, 200, 13);
  const auto load = client->StartLoad(Request(proxy.address(), "r", &target));
  // The proxy carries no load any more once it has stopped.
  Until([&] { return store->stats().waiting_loads == 16; });
  StoreAll(store.get(), "r", &source);
  Until([&] { return server->counters().stalled > 0; });
  store->End("r");
  ExpectIdle(*store);
  EXPECT_EQ(store->TakeReleased().size(), 1u);
  stopped = true;
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kPeerLost) << load->message();
}

TEST(TransferTest, ASlowPeerIsATimeoutAndWritesNoMore) {
  const auto store = BlockStore::Make();
  const auto server = MakeServer(store);
  Pool source(4, 200, 14);
  StoreAll(store.get(), "r", &source);
  std::atomic<bool> stopped{false};
  const Proxy proxy(server->address(), [&](size_t, std::string*) {
    for (int i = 0; i < 20 && !stopped; ++i) std::this_thread::sleep_for(milliseconds(1));
    return true;
  });
  const auto client = MakeClient(true, 1);
  Pool target(4, 200, 15);
  const auto load = client->StartLoad(Request(proxy.address(), "r", &target, milliseconds(200)));
  ASSERT_TRUE(load->Wait(kTestTimeout));
  EXPECT_EQ(load->code(), TransferCode::kPrefillTimeout) << load->message();
  const std::vector<char> after = target.bytes;
  stopped = true;
  Until([&] { return client->stats().outstanding == 0; });
  EXPECT_EQ(target.bytes, after);
  store->End("r");
  ExpectIdle(*store);
}

}  // namespace
}  // namespace rtp_llm
