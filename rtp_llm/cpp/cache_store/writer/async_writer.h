// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "rtp_llm/cpp/cache_store/writer/bounded_queue.h"
#include "rtp_llm/cpp/cache_store/writer/waitable.h"

namespace rtp_llm {

// A call that the writer's life cycle does not allow now; the message names the call and the
// reason.
class LifeCycleError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// No room in the writer's queue, within the time that the settings allow.
class WriterQueueFullError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Tasks of a cycle that never ran, because the writer was shut down before their turn.
class TasksDroppedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class WhenFull { kBlock, kRaise };
enum class Queued { kDrain, kDrop };

struct AsyncWriterOptions {
  // A thread is busy while its task waits for the device and for the store.
  int32_t num_threads = 4;
  int32_t queue_size = 10000;
  WhenFull when_full = WhenFull::kBlock;
  std::chrono::milliseconds submit_timeout{5000};  // of kBlock
  // Runs on the worker before each task; sets the thread's device.
  std::function<void()> before_task;
};

// Takes the writing of a step's cache blocks to the store off the thread that runs the step.
//
// A cycle is Init(), any number of Submit(), WaitAllDone(); then the next one may begin, also after
// a failure. Any thread may submit while the cycle is open, a task itself may not. Tasks run on
// several threads in any order; only a writer of one thread runs them in the order of submission.
// Threads start with the first cycle: a writer that is never used costs nothing.
//
// Every call may throw LifeCycleError; nothing has changed then.
class CacheStoreAsyncWriter {
 public:
  // What it needs it owns: nothing of the step may be gone before it runs.
  using Task = std::function<void()>;

  // Throws std::invalid_argument for options out of range.
  explicit CacheStoreAsyncWriter(AsyncWriterOptions options = {});
  // Drops what is queued. Not from a task.
  ~CacheStoreAsyncWriter();
  CacheStoreAsyncWriter(const CacheStoreAsyncWriter&) = delete;
  CacheStoreAsyncWriter& operator=(const CacheStoreAsyncWriter&) = delete;

  // Opens a cycle.
  void Init();

  // Queues `task`; a worker runs it after `ready` (if any) has happened, or fails it when waiting
  // for that throws. Throws WriterQueueFullError when there is no room; the cycle continues.
  void Submit(Task task, std::shared_ptr<Waitable> ready = nullptr);
  // The same without ever waiting: false if there is no room now, with the arguments unchanged.
  bool TrySubmit(Task* task, std::shared_ptr<Waitable>* ready);

  // Waits until every task of the cycle has ended and its captures are gone, closes the cycle, then
  // rethrows the exception of the task that failed first. A cycle that was open when the writer was
  // shut down is still waited for, and throws TasksDroppedError if some of it never ran.
  void WaitAllDone();

  // Ends the writer: tasks in the queue still run, or are dropped; submitters who wait for room get
  // a LifeCycleError. Returns when the last running task has ended. May be called again, from any
  // thread but a worker: a second call with kDrop cuts the first one's draining short.
  void Shutdown(Queued queued);

  // Tasks of the cycle that have not ended, those in the queue included.
  int64_t pending() const;
  // Tasks that no worker has taken yet.
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  bool cycle_open() const;
  // Whether the calling thread is one of this writer's.
  bool OnWorker() const;

 private:
  enum class State { kIdle, kOpen, kWaiting };

  struct Job {
    Task task;
    std::shared_ptr<Waitable> ready;
  };

  void Work();
  std::exception_ptr Run(Job* job) const;
  PushResult Push(Job* job, BoundedQueue<Job>::Clock::time_point deadline);
  void Finish(int64_t count, std::exception_ptr error);
  void Drop();
  void RefuseOnWorker(const char* call) const;

  const AsyncWriterOptions options_;
  BoundedQueue<Job> queue_;
  mutable std::mutex mutex_;
  std::condition_variable all_done_;
  State state_ = State::kIdle;
  bool stopped_ = false;
  int64_t pending_ = 0;
  std::exception_ptr error_;          // of the open cycle
  std::vector<std::thread> threads_;  // grows under mutex_ until stopped_, then is join_mutex_'s
  std::mutex join_mutex_;
};

// One cycle as a scope: whatever way the scope is left, its tasks have ended. Their failure is
// thrown at the end of the scope, unless the scope is left by another exception.
class AsyncWriterCycle {
 public:
  explicit AsyncWriterCycle(CacheStoreAsyncWriter* writer);
  ~AsyncWriterCycle() noexcept(false);
  AsyncWriterCycle(const AsyncWriterCycle&) = delete;
  AsyncWriterCycle& operator=(const AsyncWriterCycle&) = delete;

 private:
  CacheStoreAsyncWriter* const writer_;
  const int exceptions_;  // in flight when it began: it may itself be in a destructor
};

}  // namespace rtp_llm
