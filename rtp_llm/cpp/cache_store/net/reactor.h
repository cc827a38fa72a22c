// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache_store/net/event_fd.h"
#include "rtp_llm/cpp/cache_store/net/socket.h"

namespace rtp_llm {

// A thread that waits for sockets, times and work from other threads. What it serves lives on its
// thread alone and needs no locks. All but Post and Stop is for that thread.
class Reactor {
 public:
  using Clock = std::chrono::steady_clock;
  using Work = std::function<void()>;
  using Timer = std::pair<Clock::time_point, uint64_t>;

  class Handler {
   public:
    virtual ~Handler() = default;
    // `events` are a hint (epoll's): what they announce may be gone.
    virtual void OnEvents(uint32_t events) = 0;
  };

  Reactor();
  ~Reactor() { Stop(); }
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Runs `work` on the thread; after Stop it is dropped.
  void Post(Work work);
  // Runs what was posted before, then ends the thread and drops all handlers. Not from the
  // thread itself.
  void Stop();

  // Keeps `handler` until Remove. False when the system refuses one more.
  bool Add(int fd, uint32_t events, std::shared_ptr<Handler> handler);
  void Modify(int fd, uint32_t events);
  void Remove(int fd);

  Timer CallAt(Clock::time_point time, Work work);
  void CancelTimer(const Timer& timer) { timers_.erase(timer); }

 private:
  void Run();
  void RunPosted();
  void RunTimers();
  int WaitMs() const;

  Socket epoll_;
  EventFd wake_;
  std::mutex mutex_;
  std::vector<Work> posted_;
  bool stopping_ = false;
  std::unordered_map<int, std::shared_ptr<Handler>> handlers_;
  std::map<Timer, Work> timers_;
  uint64_t next_timer_ = 0;
  std::thread thread_;
};

}  // namespace rtp_llm
