// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/writer/async_writer.h"

#include <string>
#include <utility>

#include "rtp_llm/cpp/cache_store/writer/await.h"

namespace rtp_llm {
namespace {

constexpr std::chrono::hours kLongestTimeout{24};
// As the settings cache_store_threads and cache_store_queue_size.
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxQueued = 1 << 24;

thread_local const CacheStoreAsyncWriter* writer_of_thread = nullptr;

AsyncWriterOptions Checked(AsyncWriterOptions options) {
  const auto require = [](bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument("cache store writer: " + message);
  };
  const auto require_count = [&](const char* name, int32_t value, int32_t most) {
    require(value > 0 && value <= most, std::string(name) + "=" + std::to_string(value) +
                                            " must be above 0 and at most " + std::to_string(most));
  };
  require_count("num_threads", options.num_threads, kMaxThreads);
  require_count("queue_size", options.queue_size, kMaxQueued);
  const auto timeout = options.submit_timeout;
  require(timeout.count() > 0 && timeout <= kLongestTimeout,
          "submit_timeout of " + std::to_string(timeout.count()) +
              " ms must be above 0 and at most 24 hours");
  return options;
}

[[noreturn]] void Refuse(const std::string& call, const std::string& reason) {
  throw LifeCycleError("cache store writer: " + call + " " + reason);
}

}  // namespace

CacheStoreAsyncWriter::CacheStoreAsyncWriter(AsyncWriterOptions options)
    : options_(Checked(std::move(options))), queue_(static_cast<size_t>(options_.queue_size)) {}

CacheStoreAsyncWriter::~CacheStoreAsyncWriter() { Shutdown(Queued::kDrop); }

void CacheStoreAsyncWriter::Init() {
  RefuseOnWorker("init");
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) Refuse("init", "after shutdown");
  if (state_ != State::kIdle) Refuse("init", "twice: wait_all_done ends the open cycle first");
  while (threads_.size() < static_cast<size_t>(options_.num_threads)) {
    threads_.emplace_back(&CacheStoreAsyncWriter::Work, this);
  }
  state_ = State::kOpen;
}

void CacheStoreAsyncWriter::Submit(Task task, std::shared_ptr<Waitable> ready) {
  const bool block = options_.when_full == WhenFull::kBlock;
  const auto now = BoundedQueue<Job>::Clock::now();
  Job job{std::move(task), std::move(ready)};
  if (Push(&job, block ? now + options_.submit_timeout : now) == PushResult::kPushed) return;
  const std::string waited = std::to_string(options_.submit_timeout.count()) + " ms";
  throw WriterQueueFullError("cache store writer: submit found " +
                             std::to_string(options_.queue_size) + " tasks queued" +
                             (block ? ", and no room within " + waited : ""));
}

bool CacheStoreAsyncWriter::TrySubmit(Task* task, std::shared_ptr<Waitable>* ready) {
  Job job{std::move(*task), std::move(*ready)};
  const auto restore = [&] {
    *task = std::move(job.task);
    *ready = std::move(job.ready);
  };
  try {
    if (Push(&job, BoundedQueue<Job>::Clock::now()) == PushResult::kPushed) return true;
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return false;
}

// Never kClosed. The task counts from before it is in the queue: a wait that begins meanwhile
// cannot miss it.
PushResult CacheStoreAsyncWriter::Push(Job* job, BoundedQueue<Job>::Clock::time_point deadline) {
  RefuseOnWorker("submit");
  if (!job->task) throw std::invalid_argument("cache store writer: submit without a task");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) Refuse("submit", "after shutdown");
    if (state_ == State::kIdle) Refuse("submit", "before init: no cycle is open");
    if (state_ == State::kWaiting) Refuse("submit", "after wait_all_done has begun");
    ++pending_;
  }
  PushResult result = PushResult::kClosed;
  try {
    result = queue_.Push(job, deadline);
  } catch (...) {
    Finish(1, nullptr);
    throw;
  }
  if (result != PushResult::kPushed) Finish(1, nullptr);
  if (result == PushResult::kClosed) Refuse("submit", "was overtaken by shutdown");
  return result;
}

void CacheStoreAsyncWriter::WaitAllDone() {
  RefuseOnWorker("wait_all_done");
  std::exception_ptr error;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (state_ == State::kWaiting) Refuse("wait_all_done", "twice: another thread waits already");
    if (state_ == State::kIdle) {
      Refuse("wait_all_done", stopped_ ? "after shutdown" : "without init: no cycle is open");
    }
    state_ = State::kWaiting;
    Await(&all_done_, &lock, [this] { return pending_ == 0; });
    state_ = State::kIdle;
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(std::move(error));
}

void CacheStoreAsyncWriter::Shutdown(Queued queued) {
  RefuseOnWorker("shutdown");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  queue_.Close();
  if (queued == Queued::kDrop) Drop();
  std::lock_guard<std::mutex> lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void CacheStoreAsyncWriter::Drop() {
  const auto count = [this] {
    const auto dropped = queue_.TakeAll();
    return static_cast<int64_t>(dropped.size());
  }();  // what they own is gone before a wait can return
  if (count == 0) return;
  // A variable, so that who rethrows it shares nothing with a temporary here, not even its text.
  std::exception_ptr error = std::make_exception_ptr(TasksDroppedError(
      "cache store writer: shutdown dropped " + std::to_string(count) + " tasks"));
  Finish(count, std::move(error));
}

void CacheStoreAsyncWriter::Work() {
  writer_of_thread = this;
  Job job;
  while (queue_.Pop(&job)) {
    std::exception_ptr error = Run(&job);
    job = Job();
    Finish(1, std::move(error));
  }
}

std::exception_ptr CacheStoreAsyncWriter::Run(Job* job) const {
  try {
    if (options_.before_task) options_.before_task();
    if (job->ready) job->ready->Wait();
    job->task();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// An error that is not the first goes away with the argument, after the lock.
void CacheStoreAsyncWriter::Finish(int64_t count, std::exception_ptr error) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error && !error_) error_.swap(error);
  pending_ -= count;
  if (pending_ == 0) all_done_.notify_all();
}

int64_t CacheStoreAsyncWriter::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_;
}

bool CacheStoreAsyncWriter::cycle_open() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ != State::kIdle;
}

bool CacheStoreAsyncWriter::OnWorker() const { return writer_of_thread == this; }

// A task that waits for room, for its own end or for its own thread would wait for ever.
void CacheStoreAsyncWriter::RefuseOnWorker(const char* call) const {
  if (OnWorker()) Refuse(call, "from one of its own tasks");
}

AsyncWriterCycle::AsyncWriterCycle(CacheStoreAsyncWriter* writer)
    : writer_(writer), exceptions_(std::uncaught_exceptions()) {
  writer_->Init();
}

AsyncWriterCycle::~AsyncWriterCycle() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) {
    writer_->WaitAllDone();
    return;
  }
  try {
    writer_->WaitAllDone();
  } catch (...) {  // the exception that leaves the scope tells why the step failed
  }
}

}  // namespace rtp_llm
