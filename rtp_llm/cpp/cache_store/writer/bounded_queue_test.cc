// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/writer/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace rtp_llm {
namespace {

using Clock = BoundedQueue<int>::Clock;

constexpr auto kNow = Clock::time_point::min();  // waits not at all
Clock::time_point Never() { return Clock::now() + std::chrono::hours(1); }

TEST(BoundedQueueTest, FirstInFirstOut) {
  BoundedQueue<int> queue(3);
  for (int item : {5, 6, 7}) EXPECT_EQ(queue.Push(&item, kNow), PushResult::kPushed);
  EXPECT_EQ(queue.size(), 3u);
  for (const int expected : {5, 6, 7}) {
    int item = 0;
    ASSERT_TRUE(queue.Pop(&item));
    EXPECT_EQ(item, expected);
  }
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueueTest, WhatFindsNoRoomStaysWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1);
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(queue.Push(&first, kNow), PushResult::kPushed);
  EXPECT_EQ(first, nullptr);
  EXPECT_EQ(queue.Push(&second, kNow), PushResult::kFull);
  EXPECT_EQ(queue.Push(&second, Clock::now() + std::chrono::milliseconds(2)), PushResult::kFull);
  queue.Close();
  EXPECT_EQ(queue.Push(&second, kNow), PushResult::kClosed);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueueTest, WaitsForRoom) {
  BoundedQueue<int> queue(1);
  int item = 1;
  ASSERT_EQ(queue.Push(&item, kNow), PushResult::kPushed);
  std::thread pusher([&] {
    int next = 2;
    EXPECT_EQ(queue.Push(&next, Never()), PushResult::kPushed);
  });
  for (const int expected : {1, 2}) {
    ASSERT_TRUE(queue.Pop(&item));
    EXPECT_EQ(item, expected);
  }
  pusher.join();
}

TEST(BoundedQueueTest, TakingAllMakesRoomForWhoWaits) {
  BoundedQueue<int> queue(1);
  int item = 1;
  ASSERT_EQ(queue.Push(&item, kNow), PushResult::kPushed);
  std::thread pusher([&] {
    int next = 2;
    EXPECT_EQ(queue.Push(&next, Never()), PushResult::kPushed);
  });
  EXPECT_EQ(queue.TakeAll().front(), 1);
  ASSERT_TRUE(queue.Pop(&item));
  EXPECT_EQ(item, 2);
  pusher.join();
}

TEST(BoundedQueueTest, CloseLeavesWhatIsInIt) {
  BoundedQueue<int> queue(2);
  int item = 4;
  queue.Push(&item, kNow);
  queue.Close();
  EXPECT_EQ(queue.Push(&item, Never()), PushResult::kClosed);
  ASSERT_TRUE(queue.Pop(&item));
  EXPECT_EQ(item, 4);
  EXPECT_FALSE(queue.Pop(&item));
}

TEST(BoundedQueueTest, CloseWakesEverybody) {
  BoundedQueue<int> full(1);
  BoundedQueue<int> empty(1);
  int item = 1;
  full.Push(&item, kNow);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      int mine = 2;
      EXPECT_EQ(full.Push(&mine, Never()), PushResult::kClosed);
      EXPECT_FALSE(empty.Pop(&mine));
    });
  }
  full.Close();
  empty.Close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(full.size(), 1u);
}

TEST(BoundedQueueTest, NothingIsLostAndNoProducerIsOvertakenByItself) {
  constexpr int kProducers = 4;
  constexpr int kItems = 2000;
  BoundedQueue<int> queue(7);
  std::vector<std::thread> producers;
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&, producer] {
      for (int i = 0; i < kItems; ++i) {
        int item = i * kProducers + producer;
        ASSERT_EQ(queue.Push(&item, Never()), PushResult::kPushed);
      }
    });
  }
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> consumers;
  for (int i = 0; i < 3; ++i) {
    consumers.emplace_back([&] {
      int last[kProducers] = {-1, -1, -1, -1};
      for (int item = 0; queue.Pop(&item);) {
        ASSERT_GT(item, last[item % kProducers]);
        ASSERT_LE(queue.size(), 7u);
        last[item % kProducers] = item;
        sum += item;
      }
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  constexpr int64_t kAll = kProducers * kItems;
  EXPECT_EQ(sum, kAll * (kAll - 1) / 2);
}

}  // namespace
}  // namespace rtp_llm
