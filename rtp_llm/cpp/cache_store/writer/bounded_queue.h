// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

#include "rtp_llm/cpp/cache_store/writer/await.h"

namespace rtp_llm {

enum class PushResult { kPushed, kFull, kClosed };

// First in, first out, between any number of threads, and never longer than its capacity. No item
// is destroyed while the lock is held: what an item owns may need locks of its own to go away.
template <typename T>
class BoundedQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Waits for room until `deadline`, one in the past meaning not at all. `item` is taken only when
  // kPushed is returned.
  PushResult Push(T* item, Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto room = [this] { return closed_ || items_.size() < capacity_; };
    if (!room() && !has_room_.wait_until(lock, deadline, room)) return PushResult::kFull;
    if (closed_) return PushResult::kClosed;
    items_.push_back(std::move(*item));
    has_items_.notify_one();
    return PushResult::kPushed;
  }

  // Waits for an item; false when the queue is closed and nothing is left in it.
  bool Pop(T* item) {
    std::unique_lock<std::mutex> lock(mutex_);
    Await(&has_items_, &lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return false;
    *item = std::move(items_.front());
    items_.pop_front();
    has_room_.notify_one();
    return true;
  }

  // Refuses all further pushes, including those that wait for room. Queued items can be popped.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    has_items_.notify_all();
    has_room_.notify_all();
  }

  // Takes out the items that were not popped.
  std::deque<T> TakeAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    has_room_.notify_all();
    return std::exchange(items_, {});
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable has_items_;
  std::condition_variable has_room_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace rtp_llm
