// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace rtp_llm {

// Connections that were not admitted yet, in order of arrival. Any thread may call.
template <typename Connection>
class PendingConnections {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns its number, for Remove.
  uint64_t Add(std::weak_ptr<Connection> connection) {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.emplace(++last_, Pending{std::move(connection), Clock::now()});
    return last_;
  }

  void Remove(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.erase(number);
  }

  // The one that has waited longest if that was `grace` at least, which is pending no more; else
  // null.
  std::shared_ptr<Connection> TakeOldest(Clock::duration grace) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (!pending_.empty()) {
      const auto first = pending_.begin();
      if (Clock::now() - first->second.since < grace) return nullptr;
      auto connection = first->second.connection.lock();
      pending_.erase(first);
      if (connection) return connection;
    }
    return nullptr;
  }

 private:
  struct Pending {
    std::weak_ptr<Connection> connection;
    Clock::time_point since;
  };

  std::mutex mutex_;
  std::map<uint64_t, Pending> pending_;
  uint64_t last_ = 0;
};

}  // namespace rtp_llm
