// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace rtp_llm {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;

// How long a worker spins before it sleeps: longer than the pause between two steps.
constexpr int64_t kWorkerSpin = kMillisecond;
// The same for a waiting caller. While it sleeps, the system may give its core to the late worker.
constexpr int64_t kCallerSpin = 100 * kMicrosecond;
// A core that was taken away for this long runs another program, not a kernel thread; the worker
// then leaves it alone for a multiple of that time, so that its caller rarely waits for it.
constexpr int64_t kTaken = kMillisecond;
constexpr int64_t kRestFactor = 8;
constexpr int64_t kLongestRest = 500 * kMillisecond;
// Chunks of a range: what a thread that loses its core holds up at most.
constexpr int64_t kChunks = 4;

constexpr uint64_t kPhase = uint64_t{1} << 32;

uint32_t phase_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
bool is_open(uint64_t state) { return phase_of(state) % 2 == 1; }
uint32_t inside(uint64_t state) { return static_cast<uint32_t>(state); }

int64_t read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1000 * kMillisecond + time.tv_nsec;
}
int64_t now() { return read_clock(CLOCK_MONOTONIC); }

void pause() {
  for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
}

thread_local bool within_body = false;

std::atomic<ThreadPool*> shared_pool{nullptr};

}  // namespace

// How long this thread was awake without its core.
class ThreadPool::Clock {
 public:
  Clock() { restart(); }

  void restart() {
    wall_ = read_ = now();
    processor_ = read_clock(CLOCK_THREAD_CPUTIME_ID);
  }

  // Nanoseconds that were lost; 0 without a system call as long as readings follow closely.
  int64_t lost() {
    const int64_t previous = read_;
    read_ = now();
    if (read_ - previous < kTaken) return 0;
    const int64_t wall = wall_, processor = processor_;
    restart();
    const int64_t lost = (wall_ - wall) - (processor_ - processor);
    return lost < kTaken ? 0 : lost;
  }

  int64_t time() const { return read_; }

 private:
  int64_t wall_, processor_, read_;
};

ThreadPool::~ThreadPool() {
  stopping_ = true;
  for (const auto& worker : workers_) {
    {
      const std::lock_guard<std::mutex> lock(worker->mutex);
      worker->woken = true;
    }
    worker->condition.notify_one();
    worker->thread.join();
  }
}

ThreadPool& ThreadPool::shared() {
  // Threads do not live on in a forked child: it begins anew.
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { shared_pool.store(nullptr); });
  static_cast<void>(registered);
  ThreadPool* pool = shared_pool.load();
  if (pool == nullptr) {
    auto made = std::make_unique<ThreadPool>();
    if (shared_pool.compare_exchange_strong(pool, made.get())) pool = made.release();
  }
  return *pool;
}

void ThreadPool::run(int threads, int64_t begin, int64_t end, int64_t grain,
                     ParallelFor::Body body) {
  if (begin >= end) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t parts = std::min<int64_t>(threads, (end - begin + grain - 1) / grain);
  if (parts <= 1 || within_body || !in_use_.try_lock()) {
    body(begin, end);
    return;
  }
  const std::lock_guard<std::mutex> lock(in_use_, std::adopt_lock);
  grow(static_cast<int>(parts) - 1);
  prepare(static_cast<int>(parts), begin, end, grain);
  body_ = &body;
  state_.fetch_add(kPhase);
  wake(static_cast<int>(parts));
  take_chunks(0);
  state_.fetch_add(kPhase);
  wait_for_workers();
}

void ThreadPool::grow(int threads) {
  while (static_cast<int>(workers_.size()) < threads) {
    auto worker = std::make_unique<Worker>();
    worker->index = static_cast<int>(workers_.size()) + 1;
    sigset_t all, before;
    sigfillset(&all);
    // Signals are for the threads of the program.
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      worker->thread = std::thread(&ThreadPool::serve, this, worker.get());
      workers_.push_back(std::move(worker));
    } catch (const std::system_error&) {
      threads = 0;  // no more can be started: the loop uses those there are
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
}

void ThreadPool::prepare(int parts, int64_t begin, int64_t end, int64_t grain) {
  if (num_ranges_ < parts) {
    ranges_ = std::make_unique<Range[]>(static_cast<size_t>(parts));
    num_ranges_ = parts;
  }
  const int64_t count = end - begin;
  for (int64_t i = 0; i < parts; ++i) {
    Range& range = ranges_[static_cast<size_t>(i)];
    range.next.store(begin + count * i / parts, std::memory_order_relaxed);
    range.end = begin + count * (i + 1) / parts;
  }
  chunk_ = std::max(grain, (count / parts + kChunks - 1) / kChunks);
  parts_.store(parts, std::memory_order_relaxed);
}

void ThreadPool::wake(int parts) {
  for (const auto& worker : workers_) {
    if (worker->index >= parts) break;
    if (!worker->asleep.load()) continue;
    {
      const std::lock_guard<std::mutex> lock(worker->mutex);
      worker->woken = true;
      worker->asleep.store(false);
    }
    worker->condition.notify_one();
  }
}

void ThreadPool::take_chunks(int index) {
  const int parts = parts_.load(std::memory_order_relaxed);
  within_body = true;
  for (int i = 0; i < parts; ++i) {
    Range& range = ranges_[static_cast<size_t>((index + i) % parts)];
    while (range.next.load(std::memory_order_relaxed) < range.end) {
      const int64_t first = range.next.fetch_add(chunk_, std::memory_order_relaxed);
      if (first >= range.end) break;
      (*body_)(first, std::min(first + chunk_, range.end));
    }
  }
  within_body = false;
}

void ThreadPool::wait_for_workers() {
  const int64_t deadline = now() + kCallerSpin;
  while (inside(state_.load()) > 0) {
    if (now() < deadline) {
      pause();
      continue;
    }
    std::unique_lock<std::mutex> lock(done_mutex_);
    caller_waits_ = true;
    done_.wait(lock, [&] { return inside(state_.load()) == 0; });
    caller_waits_ = false;
  }
}

void ThreadPool::serve(Worker* worker) {
  uint32_t seen = 0;
  Clock clock;
  int64_t idle_since = clock.time();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool joined = join(worker->index, &seen);
    if (joined) {
      take_chunks(worker->index);
      leave();
    } else {
      pause();
    }
    const int64_t lost = clock.lost();
    if (joined) idle_since = clock.time();
    const bool idle = clock.time() - idle_since > kWorkerSpin;
    if (lost == 0 && !idle) continue;
    lost > 0 ? rest(worker, lost * kRestFactor) : sleep(worker);
    clock.restart();
    idle_since = clock.time();
  }
}

bool ThreadPool::join(int index, uint32_t* seen) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while (is_open(state) && phase_of(state) != *seen) {
    // The parts of this phase, or of a later one: then the exchange fails.
    const bool wanted = index < parts_.load(std::memory_order_relaxed);
    if (!wanted) {
      *seen = phase_of(state);
      return false;
    }
    if (state_.compare_exchange_weak(state, state + 1)) {
      *seen = phase_of(state);
      return true;
    }
  }
  return false;
}

void ThreadPool::leave() {
  const uint64_t state = state_.fetch_sub(1) - 1;
  if (inside(state) > 0 || is_open(state) || !caller_waits_.load()) return;
  {
    const std::lock_guard<std::mutex> lock(done_mutex_);
  }
  done_.notify_one();
}

void ThreadPool::sleep(Worker* worker) {
  std::unique_lock<std::mutex> lock(worker->mutex);
  if (stopping_) return;
  worker->woken = false;
  worker->asleep = true;
  // A loop that began just now did not see it asleep.
  if (!is_open(state_.load())) worker->condition.wait(lock, [&] { return worker->woken; });
  worker->asleep = false;
}

void ThreadPool::rest(Worker* worker, int64_t nanoseconds) {
  const std::chrono::nanoseconds time(std::min(nanoseconds, kLongestRest));
  std::unique_lock<std::mutex> lock(worker->mutex);
  worker->condition.wait_for(lock, time, [&] { return stopping_.load(); });
}

}  // namespace rtp_llm
