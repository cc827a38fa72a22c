// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/store/block_store.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace rtp_llm {
namespace {

char memory[1 << 16];

Block At(uint32_t position, char* base = memory, uint32_t rows = 2, uint32_t row_bytes = 8) {
  return {{0, position, position * 31 + 7}, {base, rows, row_bytes, 16}};
}

BlockQuery Query(const std::string& request, uint32_t layer, const std::vector<uint32_t>& positions,
                 uint32_t row_bytes = 8, Partition partition = {}) {
  BlockQuery query;
  query.request = request;
  query.layer = layer;
  query.partition = partition;
  for (const uint32_t position : positions) {
    query.keys.push_back(At(position).key);
    query.rows.push_back(2);
    query.row_bytes.push_back(row_bytes);
  }
  return query;
}

// Keeps what a load was answered.
struct Taken {
  std::optional<BlockStore::Answer> answer;
  BlockStore::Callback Callback() {
    return [this](BlockStore::Answer given) { answer = std::move(given); };
  }
  TransferCode code() const { return answer->result.code; }
};

void ExpectIdle(const BlockStore& store) {
  const BlockStoreStats stats = store.stats();
  EXPECT_EQ(stats.requests, 0);
  EXPECT_EQ(stats.blocks, 0);
  EXPECT_EQ(stats.bytes, 0);
  EXPECT_EQ(stats.waiting_loads, 0);
  EXPECT_EQ(stats.waiting_blocks, 0);
  EXPECT_EQ(stats.sending, 0);
  EXPECT_EQ(stats.releasing, 0);
}

bool Readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

TEST(BlockStoreTest, AnswersWhenTheLastBlockIsThere) {
  const auto store = BlockStore::Make();
  Taken both;
  Taken one;
  store->Load(Query("r", 3, {0, 1}), both.Callback());
  store->Load(Query("r", 3, {1}), one.Callback());
  EXPECT_EQ(store->stats().waiting_blocks, 3);
  store->Store("r", 2, {At(0), At(1)});
  store->Store("other", 3, {At(0), At(1)});
  EXPECT_FALSE(both.answer || one.answer);
  store->Store("r", 3, {At(1, memory + 64)});
  EXPECT_TRUE(!both.answer && one.answer);
  store->Store("r", 3, {At(0)});
  ASSERT_TRUE(both.answer);
  EXPECT_EQ(both.code(), TransferCode::kNone);
  EXPECT_EQ(both.answer->spans[0].base, memory);
  EXPECT_EQ(both.answer->spans[1].base, memory + 64);
  Taken later;
  store->Load(Query("r", 3, {1, 0}), later.Callback());
  ASSERT_TRUE(later.answer) << "everything is there already";
  EXPECT_EQ(later.answer->spans[0].base, memory + 64);
  EXPECT_EQ(store->stats().sending, 3);
  EXPECT_EQ(store->stats().blocks, 6) << "of all layers and requests";
}

TEST(BlockStoreTest, ABlockStoredAgainIsReplacedAndCountedOnce) {
  const auto store = BlockStore::Make();
  store->Store("r", 0, {At(0), At(1)});
  store->Store("r", 0, {At(0, memory + 128)});
  EXPECT_EQ(store->stats().blocks, 2);
  EXPECT_EQ(store->stats().bytes, 32);
  EXPECT_EQ(store->stats().stored_blocks, 3);
  Taken taken;
  store->Load(Query("r", 0, {0}), taken.Callback());
  EXPECT_EQ(taken.answer->spans[0].base, memory + 128);
  store->End("r");
  taken.answer.reset();
  ExpectIdle(*store);
}

TEST(BlockStoreTest, SlicesOfRows) {
  const auto store = BlockStore::Make();
  store->Store("r", 0, {{At(0).key, {memory, 2, 24, 32}}, {At(1).key, {memory, 1, 48, 48}}});
  Taken taken;
  store->Load(Query("r", 0, {0, 1}, 8, {3, 2}), taken.Callback());
  ASSERT_EQ(taken.code(), TransferCode::kNone) << taken.answer->result.detail;
  for (const Span& span : taken.answer->spans) {
    EXPECT_EQ(span.base, memory + 16);
    EXPECT_EQ(span.rows, 2u);
    EXPECT_EQ(span.row_bytes, 8u);
  }
  EXPECT_EQ(taken.answer->spans[0].stride, 32u);
  EXPECT_EQ(taken.answer->spans[1].stride, 24u) << "memory without gaps has any rows";
  Taken refused;
  store->Load(Query("r", 0, {0}, 8, {2, 0}), refused.Callback());
  EXPECT_EQ(refused.code(), TransferCode::kInvalidParams);
  EXPECT_EQ(refused.answer->lease, nullptr);
  EXPECT_NE(refused.answer->result.detail.find("2 rows of 24 bytes"), std::string::npos);
}

TEST(BlockStoreTest, EndFailsWhatWaitsAndDropsWhatComes) {
  const auto store = BlockStore::Make();
  Taken waiting;
  store->Store("r", 0, {At(0)});
  store->Load(Query("r", 0, {0, 1}), waiting.Callback());
  store->End("r");
  EXPECT_EQ(waiting.code(), TransferCode::kRequestEnded);
  EXPECT_FALSE(store->Store("r", 0, {At(1)}));
  Taken late;
  store->Load(Query("r", 0, {0}), late.Callback());
  EXPECT_EQ(late.code(), TransferCode::kRequestEnded);
  EXPECT_EQ(store->stats().dropped_stores, 1);
  EXPECT_TRUE(Readable(store->released_fd()));
  EXPECT_EQ(store->TakeReleased(), std::vector<std::string>{"r"});
  EXPECT_FALSE(Readable(store->released_fd()));
  store->End("r");
  EXPECT_TRUE(store->TakeReleased().empty()) << "once is enough";
  store->End("never heard of");
  EXPECT_EQ(store->TakeReleased().size(), 1u);
  ExpectIdle(*store);
}

TEST(BlockStoreTest, BlocksThatAreReadAreReleasedAfterwards) {
  const auto store = BlockStore::Make();
  const auto owner = std::make_shared<int>(0);
  store->Store("r", 0, {At(0)}, owner);
  Taken taken;
  store->Load(Query("r", 0, {0}), taken.Callback());
  store->End("r");
  EXPECT_TRUE(store->Busy("r"));
  EXPECT_EQ(store->stats().releasing, 1);
  EXPECT_TRUE(store->TakeReleased().empty());
  EXPECT_EQ(owner.use_count(), 2);
  taken.answer.reset();
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_FALSE(store->Busy("r"));
  EXPECT_EQ(store->TakeReleased().size(), 1u);
  ExpectIdle(*store);
}

TEST(BlockStoreTest, ACancelledLoadIsNeverAnsweredAndLeavesNothing) {
  const auto store = BlockStore::Make();
  Taken taken;
  const auto watch = store->Load(Query("r", 0, {0, 1, 2}), taken.Callback());
  EXPECT_EQ(store->Missing(watch), "layer 0, plane 0, position 0 and 2 after it");
  EXPECT_TRUE(store->Cancel(watch));
  EXPECT_FALSE(store->Cancel(watch));
  ExpectIdle(*store);
  store->Store("r", 0, {At(0), At(1), At(2)});
  EXPECT_FALSE(taken.answer);
  const auto answered = store->Load(Query("r", 0, {0}), taken.Callback());
  EXPECT_FALSE(store->Cancel(answered));
}

TEST(BlockStoreTest, TooMuchWaitingIsRefused) {
  BlockStoreOptions options;
  options.max_waiting_blocks = 3;
  const auto store = BlockStore::Make(options);
  Taken first;
  Taken second;
  Taken third;
  store->Load(Query("r", 0, {0, 1}), first.Callback());
  store->Load(Query("r", 0, {2, 3}), second.Callback());
  EXPECT_EQ(second.code(), TransferCode::kQueueFull);
  store->Load(Query("r", 0, {2}), third.Callback());
  EXPECT_FALSE(first.answer || third.answer);
}

TEST(BlockStoreTest, ExpiryCountsFromTheLastStore) {
  BlockStoreOptions options;
  options.expiry = std::chrono::hours(1);
  const auto store = BlockStore::Make(options);
  Taken waiting;
  store->Store("r", 0, {At(0)});
  store->Load(Query("r", 0, {1}), waiting.Callback());
  const auto now = BlockStore::Clock::now();
  store->Expire(now + std::chrono::minutes(59));
  EXPECT_FALSE(waiting.answer);
  store->Expire(now + std::chrono::minutes(61));
  EXPECT_EQ(waiting.code(), TransferCode::kRequestEnded);
  EXPECT_EQ(store->stats().expired, 1);
  EXPECT_FALSE(store->Store("r", 0, {At(0)}));
  store->Expire(now + std::chrono::minutes(122));
  EXPECT_TRUE(store->Store("r", 0, {At(0)})) << "that it ended is not remembered for ever";
}

// Stores, loads, cancels and ends at random from several threads: each load that was not cancelled
// is answered once, and nothing is left.
TEST(BlockStoreTest, EverythingAtOnce) {
  constexpr int kRequests = 300;
  const auto store = BlockStore::Make();
  std::atomic<int> answered{0};
  std::atomic<int> asked{0};
  const auto prefill = [&](int first) {
    for (int request = first; request < kRequests; request += 2) {
      const std::string name = std::to_string(request);
      for (uint32_t layer = 0; layer < 4; ++layer) {
        store->Store(name, layer, {At(0), At(1)}, std::make_shared<int>(request));
        store->Store(name, layer, {At(2)});
      }
      store->End(name);
    }
  };
  const auto decode = [&](int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (int request = 0; request < kRequests; ++request) {
      std::vector<std::shared_ptr<BlockStore::Watch>> watches;
      for (uint32_t layer = 0; layer < 4; ++layer) {
        watches.push_back(store->Load(Query(std::to_string(request), layer, {0, 1, 2}),
                                      [&](BlockStore::Answer) { ++answered; }));
        ++asked;
      }
      if (random() % 4 == 0 && store->Cancel(watches[random() % 4])) --asked;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back(prefill, i);
  for (int i = 0; i < 3; ++i) threads.emplace_back(decode, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, asked);
  EXPECT_EQ(store->TakeReleased().size(), static_cast<size_t>(kRequests));
  ExpectIdle(*store);
}

}  // namespace
}  // namespace rtp_llm
