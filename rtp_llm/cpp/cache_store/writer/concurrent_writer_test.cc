// SPDX-License-Identifier: Apache-2.0
// Many threads at once, and calls in random order checked against a model of the allowed results.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rtp_llm/cpp/cache_store/writer/async_writer.h"
#include "rtp_llm/cpp/cache_store/writer/gate.h"
#include "rtp_llm/cpp/cache_store/writer/writer_fixture.h"

namespace rtp_llm {
namespace {

using Writer = CacheStoreAsyncWriter;

TEST(ConcurrentWriterTest, ThirtyTwoSubmittersOfTenThousandTasks) {
  constexpr int kSubmitters = 32;
  constexpr int kTasks = 10000;
  Writer writer(Sized(4, 1000));
  std::vector<std::atomic<int>> ran(kSubmitters);
  writer.Init();
  std::vector<std::thread> submitters;
  for (int id = 0; id < kSubmitters; ++id) {
    submitters.emplace_back([&, id] {
      for (int i = 0; i < kTasks; ++i) writer.Submit([&ran, id] { ++ran[id]; });
    });
  }
  for (std::thread& thread : submitters) thread.join();
  writer.WaitAllDone();
  for (const auto& count : ran) EXPECT_EQ(count, kTasks);
  EXPECT_EQ(writer.pending(), 0);
  EXPECT_EQ(writer.queued(), 0);
}

TEST(ConcurrentWriterTest, ThirtyTwoThreadsOfWhichMostWait) {
  constexpr int kThreads = 32;
  Writer writer(Sized(kThreads, 64));
  const auto gate = std::make_shared<Gate>();
  std::atomic<int> ran{0};
  writer.Init();
  for (int i = 0; i < kThreads - 1; ++i) writer.Submit([&] { ++ran; }, gate);
  gate->AwaitWaiters(kThreads - 1);
  for (int i = 0; i < 1000; ++i) writer.Submit([&] { ++ran; });
  // The one that is left does all of these.
  while (writer.pending() > kThreads - 1) std::this_thread::yield();
  EXPECT_EQ(ran, 1000);
  gate->Open();
  writer.WaitAllDone();
  EXPECT_EQ(ran, 1000 + kThreads - 1);
}

TEST(ConcurrentWriterTest, OneOfManyExceptionsArrives) {
  Writer writer(Sized(8, 16));
  for (int cycle = 0; cycle < 50; ++cycle) {
    writer.Init();
    for (int i = 0; i < 40; ++i) {
      writer.Submit([=] { throw std::runtime_error("cycle " + std::to_string(cycle)); });
    }
    try {
      writer.WaitAllDone();
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      ASSERT_EQ(error.what(), "cycle " + std::to_string(cycle)) << "of this cycle, not an old one";
    }
  }
}

// Every task is run, dropped or refused, whenever the shutdown happens, and no thread hangs.
class ShutdownRace {
 public:
  explicit ShutdownRace(uint32_t seed) : random_(seed), writer_(Sized(1 + seed % 3, 1 + seed % 5)) {
    queued_ = seed % 2 == 0 ? Queued::kDrain : Queued::kDrop;
  }

  void Run() {
    writer_.Init();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([this] { SubmitUntilRefused(); });
    threads.emplace_back([this, after = static_cast<int>(random_() % 60)] {
      while (ran_ < after) std::this_thread::yield();
      writer_.Shutdown(queued_);
    });
    for (std::thread& thread : threads) thread.join();
    bool dropped = false;
    try {
      writer_.WaitAllDone();
    } catch (const TasksDroppedError&) {
      dropped = true;
    }
    EXPECT_EQ(dropped, ran_ < accepted_);
    EXPECT_FALSE(dropped && queued_ == Queued::kDrain);
    EXPECT_EQ(writer_.pending(), 0);
    EXPECT_EQ(token_.use_count(), 1) << "a task's captures are left";
  }

 private:
  void SubmitUntilRefused() {
    try {
      for (;;) {
        writer_.Submit([this, token = token_] { ++ran_; });
        ++accepted_;
      }
    } catch (const LifeCycleError&) {
    }
  }

  std::mt19937 random_;
  const std::shared_ptr<int> token_ = std::make_shared<int>(0);
  std::atomic<int> ran_{0};
  std::atomic<int> accepted_{0};
  Queued queued_;
  Writer writer_;
};

TEST(ConcurrentWriterTest, ShutdownAtAnyMoment) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    ShutdownRace(seed).Run();
  }
}

// Random calls from one thread. The model knows which are refused and how a cycle must end.
class RandomCalls {
 public:
  explicit RandomCalls(uint32_t seed)
      : random_(seed), writer_(Sized(1 + static_cast<int32_t>(seed % 4), 64)) {}

  void Run(int calls) {
    for (int i = 0; i < calls && !testing::Test::HasFatalFailure(); ++i) Call(Below(12));
    if (open_) End();
    EXPECT_EQ(ran_, expected_);
    EXPECT_GT(failures_, 5);
    EXPECT_GT(refused_, 5);
  }

 private:
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint32_t>(limit)); }

  void Call(int which) {
    if (which == 0) return open_ ? Refused([this] { writer_.Init(); }) : Begin();
    if (which == 1) return open_ ? End() : Refused([this] { writer_.WaitAllDone(); });
    if (which == 2 && !gates_.empty()) return OpenOne();
    if (!open_) return Refused([this] { writer_.Submit([] {}); });
    if (gates_.size() < 8) Submit();
  }

  void Begin() {
    writer_.Init();
    open_ = true;
    failing_ = false;
  }

  void Submit() {
    const bool fails = Below(10) == 0;
    std::shared_ptr<Gate> gate = Below(3) == 0 ? std::make_shared<Gate>() : nullptr;
    while (writer_.queued() > 32 && !gates_.empty()) OpenOne();
    writer_.Submit(
        [this, fails, words = std::vector<int>(16, Below(100))] {
          for (const int word : words) ASSERT_EQ(word, words[0]);
          ++ran_;
          if (fails) throw std::runtime_error("task failed");
        },
        gate);
    if (gate) gates_.push_back(gate);
    ++expected_;
    failing_ |= fails;
  }

  void OpenOne() {
    const size_t chosen = static_cast<size_t>(Below(static_cast<int>(gates_.size())));
    gates_[chosen]->Open();
    gates_.erase(gates_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }

  void End() {
    while (!gates_.empty()) OpenOne();
    bool failed = false;
    try {
      writer_.WaitAllDone();
    } catch (const std::runtime_error&) {
      failed = true;
    }
    ASSERT_EQ(failed, failing_);
    ASSERT_EQ(ran_, expected_);
    ASSERT_EQ(writer_.pending(), 0);
    failures_ += failed;
    open_ = false;
  }

  template <typename F>
  void Refused(const F& call) {
    ++refused_;
    ASSERT_THROW(call(), LifeCycleError);
    ASSERT_EQ(writer_.cycle_open(), open_);
    ASSERT_TRUE(open_ || writer_.pending() == 0);
  }

  std::mt19937 random_;
  std::atomic<int> ran_{0};
  int expected_ = 0;
  int failures_ = 0;
  int refused_ = 0;
  bool open_ = false;
  bool failing_ = false;
  std::vector<std::shared_ptr<Gate>> gates_;
  Writer writer_;
};

TEST(ConcurrentWriterTest, RandomCalls) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_NO_FATAL_FAILURE(RandomCalls(seed).Run(1500));
  }
}

}  // namespace
}  // namespace rtp_llm
