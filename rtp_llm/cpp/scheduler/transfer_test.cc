// SPDX-License-Identifier: Apache-2.0
// Threads that pin blocks, as a cache transfer does, while the scheduler allocates and evicts.

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

// Blocks handed from the scheduler's thread, already pinned once, to whoever takes them.
class Handover {
 public:
  void Put(std::vector<int32_t> blocks) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(blocks));
  }
  bool Take(std::vector<int32_t>* blocks) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty()) return false;
    *blocks = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<std::vector<int32_t>> queue_;
};

class TransferTest : public SchedulerFixture, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    SchedulerConfig config = DefaultConfig();
    config.groups[0].num_blocks = 61;
    config.overlap = GetParam();
    Start(config);
  }

  void Transfer(Handover* handover, const std::atomic<bool>* stop, int seed) {
    BlockPool& pool = scheduler->cache().pool(0);
    std::mt19937 random(seed);
    std::vector<int32_t> blocks;
    while (true) {
      const bool last_round = stop->load();
      while (handover->Take(&blocks)) {
        const auto count = static_cast<int32_t>(blocks.size());
        pool.Acquire(Holder::kPin, blocks.data(), count);  // one more reader
        pool.Release(Holder::kPin, blocks.data(), count);
        if (random() % 4 == 0) std::this_thread::yield();
        // One by one and in any order: a parent may become idle before its child.
        while (!blocks.empty()) {
          std::swap(blocks[random() % blocks.size()], blocks.back());
          pool.Release(Holder::kPin, blocks.back());
          blocks.pop_back();
        }
      }
      if (last_round) return;
      std::this_thread::yield();
    }
  }
};

TEST_P(TransferTest, BlocksInTransferAreNeitherLostNorGivenAway) {
  Handover handover;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] { Transfer(&handover, &stop, seed); });
  }
  BlockPool& pool = scheduler->cache().pool(0);
  std::mt19937 random(5);
  int64_t next_id = 1;
  for (int step = 0; step < 2000;) {
    while (scheduler->stats().waiting < 3) {
      const auto length = static_cast<int32_t>(1 + random() % 60);
      std::vector<int32_t> prompt(length, static_cast<int32_t>(random() % 3));
      scheduler->Add({next_id++}, prompt.data(), length, MaxTokens(1 + random() % 20));
    }
    if (!Schedule()) {  // everything is in transfer, or flies
      Commit();
      std::this_thread::yield();
      continue;
    }
    ++step;
    const Batch& batch = scheduler->batch();
    const auto row = random() % batch.num_seqs;
    const int32_t* table = &batch.groups[0].block_table[row * batch.groups[0].table_width];
    std::vector<int32_t> blocks(table, table + (batch.seq_lens[row] + 3) / 4);
    pool.Acquire(Holder::kPin, blocks.data(), static_cast<int32_t>(blocks.size()));
    handover.Put(std::move(blocks));
    if (random() % 8 == 0) scheduler->Abort({batch.seq_ids[row]});
    // With overlap this batch flies while the next one is scheduled.
    if (scheduler->uncommitted().size() == (GetParam() ? 2u : 1u)) Commit();
    ASSERT_NO_THROW(if (step % 100 == 0) scheduler->CheckIntegrity());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  while (!scheduler->uncommitted().empty()) Commit();
  Drain();
  EXPECT_GT(next_id, 300);
}

INSTANTIATE_TEST_SUITE_P(Overlap, TransferTest, testing::Bool());

}  // namespace
}  // namespace rtp_llm
