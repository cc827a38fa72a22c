// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/reactor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace rtp_llm {
namespace {

// Runs `work` on the reactor's thread and waits for it.
void RunOn(Reactor* reactor, const Reactor::Work& work) {
  std::promise<void> done;
  reactor->Post([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

TEST(ReactorTest, WorkRunsOnceInTheOrderOfItsThread) {
  Reactor reactor;
  std::vector<std::vector<int>> seen(3);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 1000; ++i) reactor.Post([&, thread, i] { seen[thread].push_back(i); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  RunOn(&reactor, [] {});
  for (const auto& each : seen) {
    ASSERT_EQ(each.size(), 1000u);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(each[i], i);
  }
}

TEST(ReactorTest, StopRunsWhatWasPostedAndDropsWhatComesLater) {
  const auto captured = std::make_shared<int>(0);
  std::atomic<int> ran{0};
  Reactor reactor;
  for (int i = 0; i < 10; ++i) reactor.Post([&, captured] { ++ran; });
  reactor.Stop();
  reactor.Post([&, captured] { ++ran; });
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(captured.use_count(), 1);
  reactor.Stop();
}

TEST(ReactorTest, TimersInTheirOrderNeverEarlyAndNotOnceCancelled) {
  Reactor reactor;
  std::vector<int> order;
  std::promise<void> last;
  RunOn(&reactor, [&] {
    const auto now = Reactor::Clock::now();
    const auto at = [&](int ms, int number) {
      return reactor.CallAt(now + std::chrono::milliseconds(ms), [&, now, ms, number] {
        EXPECT_GE(Reactor::Clock::now() - now, std::chrono::milliseconds(ms));
        order.push_back(number);
      });
    };
    at(5, 2);
    at(1, 1);
    const Reactor::Timer cancelled = at(3, 7);
    reactor.CallAt(now + std::chrono::milliseconds(8), [&] { last.set_value(); });
    reactor.CancelTimer(cancelled);
  });
  last.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

struct Flag : Reactor::Handler {
  explicit Flag(Reactor* owner) : reactor(owner) {}
  void OnEvents(uint32_t) override {
    event.Clear();
    if (++count == 2) {
      reactor->Remove(event.fd());  // destroys this very handler
      done.set_value();
    }
  }
  Reactor* const reactor;
  EventFd event;
  std::atomic<int> count{0};
  std::promise<void> done;
};

TEST(ReactorTest, HandlersAreKeptUntilTheyAreRemoved) {
  Reactor reactor;
  auto flag = std::make_shared<Flag>(&reactor);
  const std::weak_ptr<Flag> watched = flag;
  RunOn(&reactor, [&] { EXPECT_TRUE(reactor.Add(flag->event.fd(), EPOLLIN, flag)); });
  flag->event.Set();
  while (flag->count == 0) std::this_thread::yield();
  flag->event.Set();
  flag->done.get_future().wait();
  RunOn(&reactor, [] {});
  flag.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(ReactorTest, StopLetsGoOfHandlersAndTimers) {
  const auto captured = std::make_shared<int>(0);
  const auto flag = std::make_shared<Flag>(nullptr);
  Reactor reactor;
  RunOn(&reactor, [&] {
    EXPECT_TRUE(reactor.Add(flag->event.fd(), EPOLLIN, flag));
    EXPECT_FALSE(reactor.Add(-1, EPOLLIN, flag));
    reactor.CallAt(Reactor::Clock::now() + std::chrono::hours(1), [captured] {});
  });
  reactor.Stop();
  EXPECT_EQ(flag.use_count(), 1);
  EXPECT_EQ(captured.use_count(), 1);
}

}  // namespace
}  // namespace rtp_llm
