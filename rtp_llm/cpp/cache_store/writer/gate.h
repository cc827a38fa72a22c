// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include "rtp_llm/cpp/cache_store/writer/waitable.h"

namespace rtp_llm {

// Stands for a device's event in tests: closed until somebody opens or breaks it.
class Gate : public Waitable {
 public:
  void Wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || broken_; });
    if (broken_) throw std::runtime_error("the event failed");
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Break() {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }
  // Returns once `count` threads have arrived in all.
  void AwaitWaiters(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
  bool broken_ = false;
};

}  // namespace rtp_llm
