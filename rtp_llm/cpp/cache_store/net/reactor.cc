// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/reactor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace rtp_llm {

Reactor::Reactor() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_.fd();
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, wake_.fd(), &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  thread_ = std::thread(&Reactor::Run, this);
}

void Reactor::Post(Work work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    posted_.push_back(std::move(work));
    if (posted_.size() > 1) return;  // the thread has been woken for the first
  }
  wake_.Set();
}

void Reactor::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.Set();
  if (thread_.joinable()) thread_.join();
}

bool Reactor::Add(int fd, uint32_t events, std::shared_ptr<Handler> handler) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0) return false;
  handlers_[fd] = std::move(handler);
  return true;
}

void Reactor::Modify(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::Remove(int fd) {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

Reactor::Timer Reactor::CallAt(Clock::time_point time, Work work) {
  const Timer timer{time, next_timer_++};
  timers_.emplace(timer, std::move(work));
  return timer;
}

void Reactor::Run() {
  std::array<epoll_event, 64> events;
  for (bool stopping = false; !stopping;) {
    const int count = epoll_wait(epoll_.fd(), events.data(), events.size(), WaitMs());
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      const auto found = handlers_.find(fd);
      if (found == handlers_.end()) continue;
      const std::shared_ptr<Handler> handler = found->second;  // it may remove itself
      handler->OnEvents(events[i].events);
    }
    RunTimers();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping = stopping_;
    }
    RunPosted();
  }
  timers_.clear();
  handlers_.clear();
}

void Reactor::RunPosted() {
  std::vector<Work> posted;
  wake_.Clear();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    posted.swap(posted_);
  }
  for (Work& work : posted) std::exchange(work, nullptr)();
}

void Reactor::RunTimers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const Work work = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    work();
  }
}

// Until the first timer, rounded up: a timer is never early.
int Reactor::WaitMs() const {
  if (timers_.empty()) return -1;
  const auto wait = timers_.begin()->first.first - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60000));
}

}  // namespace rtp_llm
