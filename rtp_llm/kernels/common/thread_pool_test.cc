// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace rtp_llm {
namespace {

using std::chrono::milliseconds;

// How often each number of [0, count) is visited.
class Visits {
 public:
  explicit Visits(int64_t count) : visits_(static_cast<size_t>(count)) {}

  void add(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++visits_[static_cast<size_t>(i)];
  }
  bool all_are(int64_t begin, int64_t end) const {
    for (int64_t i = 0; i < static_cast<int64_t>(visits_.size()); ++i) {
      if (visits_[static_cast<size_t>(i)] != (i >= begin && i < end ? 1 : 0)) return false;
    }
    return true;
  }

 private:
  std::vector<std::atomic<int>> visits_;
};

// This thread's context switches, voluntary and involuntary.
int64_t context_switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

TEST(ThreadPool, EveryNumberIsVisitedOnce) {
  ThreadPool pool;
  for (int threads : {1, 2, 3, 8}) {
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {0, 1, 3, 64, 5000}) {
        Visits visits(count + 5);
        pool.run(threads, 5, 5 + count, grain,
                 [&](int64_t begin, int64_t end) { visits.add(begin, end); });
        EXPECT_TRUE(visits.all_are(5, 5 + count)) << threads << " " << count << " " << grain;
      }
    }
  }
}

TEST(ThreadPool, ChunksHaveAtLeastTheGrainButForTheLastOfARange) {
  ThreadPool pool;
  std::atomic<int> small{0};
  pool.run(3, 0, 100, 10, [&](int64_t begin, int64_t end) { small += end - begin < 10; });
  EXPECT_LE(small, 3);
}

// A body waits until two threads are inside it.
TEST(ThreadPool, ThreadsWorkAtTheSameTimeAndAgainAfterTheySlept) {
  ThreadPool pool;
  for (int turn = 0; turn < 2; ++turn) {
    std::atomic<int> inside{0};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    pool.run(2, 0, 2, 1, [&](int64_t, int64_t) {
      ++inside;
      while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    });
    EXPECT_EQ(inside, 2);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// Counts the caller's context switches over `loops` loops with a worker on the same core.
void count_switches_on_one_core(int loops, int64_t* switches) {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof allowed, &allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
  ThreadPool pool;
  std::atomic<int64_t> sum{0};
  const int64_t before = context_switches();
  for (int loop = 0; loop < loops; ++loop) {
    pool.run(2, 0, 8, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  *switches = context_switches() - before;
  EXPECT_EQ(sum, loops * 8);
}

// The worker is late for nearly every loop: a caller that waited for it would give up its core in
// each of them.
TEST(ThreadPool, NobodyWaitsForAThreadThatHasNotBegun) {
  int64_t switches = 0;
  std::thread caller(count_switches_on_one_core, 4000, &switches);
  caller.join();
  EXPECT_LT(switches, 2000);
}

TEST(ThreadPool, ASecondCallerDoesItsLoopByItself) {
  ThreadPool pool;
  std::atomic<bool> held{false}, free{false};
  const auto hold = [&](int64_t, int64_t) {
    held = true;
    while (!free) std::this_thread::yield();
  };
  std::thread first(&ThreadPool::run, &pool, 2, 0, 2, 1, hold);
  while (!held) std::this_thread::yield();
  Visits visits(50);
  const std::thread::id self = std::this_thread::get_id();
  std::atomic<int> elsewhere{0};
  pool.run(2, 0, 50, 1, [&](int64_t begin, int64_t end) {
    visits.add(begin, end);
    elsewhere += std::this_thread::get_id() != self;
  });
  EXPECT_TRUE(visits.all_are(0, 50));
  EXPECT_EQ(elsewhere, 0);
  free = true;
  first.join();
}

TEST(ThreadPool, ALoopWithinALoopStaysOnItsThread) {
  ThreadPool pool;
  std::atomic<int> sum{0}, moved{0};
  pool.run(2, 0, 8, 1, [&](int64_t begin, int64_t end) {
    const std::thread::id self = std::this_thread::get_id();
    pool.run(2, begin * 10, end * 10, 1, [&](int64_t first, int64_t last) {
      sum += static_cast<int>(last - first);
      moved += std::this_thread::get_id() != self;
    });
  });
  EXPECT_EQ(sum, 80);
  EXPECT_EQ(moved, 0);
}

// Writes made before a loop are visible inside it, and its own writes are visible after it.
TEST(ThreadPool, ManyShortLoopsSeeEachOthersResults) {
  ThreadPool pool;
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 0; round < 20000; ++round) {
    pool.run(3, 0, 64, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += round;
    });
  }
  for (const int64_t value : values) ASSERT_EQ(value, int64_t{20000} * 19999 / 2);
}

TEST(ThreadPool, CallersOnSeveralThreadsAllFinish) {
  ThreadPool pool;
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        pool.run(2, 0, 16, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 500 * 16);
}

#if !defined(__SANITIZE_THREAD__)  // which lets a child of many threads start none
TEST(ThreadPool, AForkedChildHasThreadsOfItsOwn) {
  std::atomic<int64_t> sum{0};
  const auto add = [&](int64_t begin, int64_t end) { sum += end - begin; };
  ThreadPool::shared().run(2, 0, 100, 1, add);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    for (int i = 0; i < 10; ++i) ThreadPool::shared().run(2, 0, 100, 1, add);
    _exit(sum == 1100 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

}  // namespace
}  // namespace rtp_llm
