// SPDX-License-Identifier: Apache-2.0
// The threads that CPU kernels run on. A core kept busy by another program costs little: a loop
// never waits for a thread that has not begun.
//
// A loop is cut into one range a thread and each range into chunks. A thread takes the chunks of
// its own range, then those that others have left. The caller waits only for chunks that are being
// computed, so late threads find nothing to do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm {

class ThreadPool {
 public:
  ThreadPool() = default;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  // The one of this process; after fork() the child has one of its own. It is never destroyed.
  static ThreadPool& shared();

  // As ParallelFor, by at most `threads` threads, the caller's among them. Where another thread is
  // inside, or within a body, the caller's thread does it all.
  void run(int threads, int64_t begin, int64_t end, int64_t grain, ParallelFor::Body body);

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  // A thread waits for work in three ways: it spins while work is likely to come soon, then sleeps
  // until it is woken; and it rests for a while after something else has held its core.
  struct alignas(64) Worker {
    int index = 0;  // of its range; the caller has 0
    std::atomic<bool> asleep{false};
    bool woken = false;
    std::mutex mutex;
    std::condition_variable condition;
    std::thread thread;
  };

  class Clock;

  void grow(int threads);
  void prepare(int parts, int64_t begin, int64_t end, int64_t grain);
  void wake(int parts);
  void take_chunks(int index);
  void wait_for_workers();

  void serve(Worker* worker);
  bool join(int index, uint32_t* seen);
  void leave();
  void sleep(Worker* worker);
  void rest(Worker* worker, int64_t nanoseconds);

  std::mutex in_use_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stopping_{false};

  // The loop that is computed. Written while it is closed and no worker is inside.
  const ParallelFor::Body* body_ = nullptr;
  std::unique_ptr<Range[]> ranges_;
  int num_ranges_ = 0;
  int64_t chunk_ = 1;
  std::atomic<int> parts_{0};

  // Above: counts openings and closings, odd while workers may join. Below: workers inside.
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<bool> caller_waits_{false};
  std::mutex done_mutex_;
  std::condition_variable done_;
};

}  // namespace rtp_llm
