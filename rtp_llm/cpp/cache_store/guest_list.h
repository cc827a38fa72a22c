#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace rtp_llm {

// Connections that were not welcomed yet, in the order in which they came. Any thread may call.
template <typename Connection>
class GuestList {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns its number, for Remove.
  uint64_t Add(std::weak_ptr<Connection> guest) {
    std::lock_guard<std::mutex> lock(mutex_);
    guests_.emplace(++last_, Guest{std::move(guest), Clock::now()});
    return last_;
  }

  void Remove(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    guests_.erase(number);
  }

  // The one that has waited longest if that was `grace` at least, who is no guest any more; else
  // null.
  std::shared_ptr<Connection> TakeOldest(Clock::duration grace) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (!guests_.empty()) {
      const auto first = guests_.begin();
      if (Clock::now() - first->second.since < grace) return nullptr;
      auto guest = first->second.connection.lock();
      guests_.erase(first);
      if (guest) return guest;
    }
    return nullptr;
  }

 private:
  struct Guest {
    std::weak_ptr<Connection> connection;
    Clock::time_point since;
  };

  std::mutex mutex_;
  std::map<uint64_t, Guest> guests_;
  uint64_t last_ = 0;
};

}  // namespace rtp_llm
