// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/writer/async_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rtp_llm/cpp/cache_store/writer/gate.h"
#include "rtp_llm/cpp/cache_store/writer/writer_fixture.h"

namespace rtp_llm {
namespace {

using Writer = CacheStoreAsyncWriter;

void Nothing() {}

TEST(AsyncWriterTest, TheDefaultsAreThoseOfTheSpecification) {
  const AsyncWriterOptions options;
  EXPECT_EQ(options.num_threads, 4);
  EXPECT_EQ(options.queue_size, 10000);
  EXPECT_EQ(options.when_full, WhenFull::kBlock);
}

TEST(AsyncWriterTest, OptionsOutOfRangeAreNamed) {
  const auto message = [](const AsyncWriterOptions& options) {
    return Thrown<std::invalid_argument>([&] { Writer writer(options); });
  };
  EXPECT_NE(message(Sized(0, 1)).find("num_threads=0"), std::string::npos);
  EXPECT_NE(message(Sized(1, -2)).find("queue_size=-2"), std::string::npos);
  for (const int64_t timeout : {0L, -1L, 24 * 3600 * 1000L + 1}) {
    AsyncWriterOptions options;
    options.submit_timeout = std::chrono::milliseconds(timeout);
    EXPECT_NE(message(options).find(std::to_string(timeout) + " ms"), std::string::npos);
  }
}

TEST(AsyncWriterTest, EveryMisuseIsNamed) {
  Writer writer;
  ExpectRefused([&] { writer.Submit(Nothing); }, "submit before init");
  ExpectRefused([&] { writer.WaitAllDone(); }, "wait_all_done without init");
  writer.Init();
  ExpectRefused([&] { writer.Init(); }, "init twice");
  EXPECT_THROW(writer.Submit(nullptr), std::invalid_argument);
  EXPECT_TRUE(writer.cycle_open());
  writer.WaitAllDone();
  EXPECT_FALSE(writer.cycle_open());
  ExpectRefused([&] { writer.Submit(Nothing); }, "submit before init");
  ExpectRefused([&] { writer.WaitAllDone(); }, "wait_all_done without init");
  writer.Shutdown(Queued::kDrain);
  ExpectRefused([&] { writer.Init(); }, "init after shutdown");
  ExpectRefused([&] { writer.Submit(Nothing); }, "submit after shutdown");
  ExpectRefused([&] { writer.WaitAllDone(); }, "wait_all_done after shutdown");
  writer.Shutdown(Queued::kDrop);
  EXPECT_EQ(writer.pending(), 0);
}

TEST(AsyncWriterTest, ATaskMayNotCallItsOwnWriter) {
  Writer writer(Sized(1, 8));
  writer.Init();
  EXPECT_FALSE(writer.OnWorker());
  writer.Submit([&] {
    EXPECT_TRUE(writer.OnWorker());
    ExpectRefused([&] { writer.Init(); }, "init from one of its own tasks");
    ExpectRefused([&] { writer.Submit(Nothing); }, "submit from one of its own tasks");
    ExpectRefused([&] { writer.WaitAllDone(); }, "wait_all_done from one of its own tasks");
    ExpectRefused([&] { writer.Shutdown(Queued::kDrop); }, "shutdown from one of its own tasks");
    Writer other;  // another one it may
    other.Init();
    other.Submit(Nothing);
    other.WaitAllDone();
  });
  writer.WaitAllDone();
}

TEST(AsyncWriterTest, AThousandCycles) {
  Writer writer(Sized(2, 8));
  std::atomic<int> ran{0};
  for (int cycle = 0; cycle < 1000; ++cycle) {
    writer.Init();
    for (int layer = 0; layer < cycle % 4; ++layer) writer.Submit([&] { ++ran; });
    writer.WaitAllDone();
    ASSERT_EQ(writer.pending(), 0);
  }
  EXPECT_EQ(ran, 250 * (0 + 1 + 2 + 3));
}

TEST(AsyncWriterTest, OneThreadKeepsTheOrder) {
  Writer writer(Sized(1, 4));
  std::vector<int> order;
  std::vector<int> expected;
  writer.Init();
  for (int i = 0; i < 100; ++i) {
    writer.Submit([&, i] { order.push_back(i); });
    expected.push_back(i);
  }
  writer.WaitAllDone();
  EXPECT_EQ(order, expected);
}

TEST(AsyncWriterTest, TheTaskRunsAfterItsEvent) {
  Writer writer(Sized(2, 8));
  const auto gate = std::make_shared<Gate>();
  std::atomic<bool> written{false};
  std::atomic<bool> seen{false};
  std::atomic<bool> other{false};
  writer.Init();
  writer.Submit([&] { seen = written.load(); }, gate);
  gate->AwaitWaiters(1);
  writer.Submit([&] { other = true; });  // has its own event: none
  while (writer.pending() > 1) std::this_thread::yield();
  EXPECT_TRUE(other);
  written = true;
  gate->Open();
  writer.WaitAllDone();
  EXPECT_TRUE(seen);
  EXPECT_EQ(gate.use_count(), 1);
}

TEST(AsyncWriterTest, ATaskWhoseEventFailsDoesNotRun) {
  Writer writer(Sized(1, 8));
  const auto gate = std::make_shared<Gate>();
  gate->Break();
  bool ran = false;
  writer.Init();
  writer.Submit([&] { ran = true; }, gate);
  const std::string message = Thrown<std::runtime_error>([&] { writer.WaitAllDone(); });
  EXPECT_EQ(message, "the event failed");
  EXPECT_FALSE(ran);
}

TEST(AsyncWriterTest, TheFirstExceptionIsThrownOnceAndTheRestStillRuns) {
  Writer writer(Sized(1, 8));
  int ran = 0;
  writer.Init();
  for (int layer = 0; layer < 6; ++layer) {
    writer.Submit([&, layer] {
      ++ran;
      if (layer >= 2) throw std::runtime_error("layer " + std::to_string(layer));
    });
  }
  EXPECT_EQ(Thrown<std::runtime_error>([&] { writer.WaitAllDone(); }), "layer 2");
  EXPECT_EQ(ran, 6);
  EXPECT_EQ(writer.pending(), 0);
  ExpectRefused([&] { writer.WaitAllDone(); }, "without init");
  writer.Init();
  writer.Submit([&] { ++ran; });
  EXPECT_NO_THROW(writer.WaitAllDone()) << "the next cycle knows nothing of it";
  EXPECT_EQ(ran, 7);
}

TEST(AsyncWriterTest, AnythingMayBeThrown) {
  Writer writer(Sized(1, 8));
  writer.Init();
  writer.Submit([] { throw 42; });
  EXPECT_THROW(writer.WaitAllDone(), int);
}

TEST(AsyncWriterTest, CapturesLiveUntilTheTaskEndsAndNoLonger) {
  Writer writer(Sized(1, 8));
  const auto gate = std::make_shared<Gate>();
  auto block = std::make_shared<std::vector<int>>(1000, 7);
  const std::weak_ptr<std::vector<int>> watched = block;
  int sum = 0;
  writer.Init();
  writer.Submit(
      [block, &sum] {
        for (const int value : *block) sum += value;
      },
      gate);
  block.reset();  // the caller drops it right after the submit
  EXPECT_FALSE(watched.expired());
  gate->Open();
  writer.WaitAllDone();
  EXPECT_EQ(sum, 7000);
  EXPECT_TRUE(watched.expired()) << "blocks may be freed once the wait is over";
}

TEST(AsyncWriterTest, TheWorkersDeviceIsSetBeforeTheEventAndTheTask) {
  static thread_local int device = 0;
  AsyncWriterOptions options = Sized(3, 8);
  options.before_task = [] { device = 3; };
  Writer writer(options);
  struct NeedsDevice : Waitable {
    void Wait() override { EXPECT_EQ(device, 3); }
  };
  writer.Init();
  for (int i = 0; i < 20; ++i) {
    writer.Submit([] { EXPECT_EQ(device, 3); }, std::make_shared<NeedsDevice>());
  }
  writer.WaitAllDone();
  EXPECT_EQ(device, 0) << "the submitter keeps its own";
}

TEST(AsyncWriterTest, ADeviceThatCannotBeSetFailsTheTask) {
  AsyncWriterOptions options = Sized(1, 8);
  options.before_task = [] { throw std::runtime_error("no such device"); };
  Writer writer(options);
  writer.Init();
  writer.Submit([] { ADD_FAILURE() << "ran on another device"; });
  EXPECT_EQ(Thrown<std::runtime_error>([&] { writer.WaitAllDone(); }), "no such device");
}

TEST(AsyncWriterCycleTest, WaitsAndThrowsAtTheEndOfTheScope) {
  Writer writer(Sized(2, 8));
  std::atomic<int> ran{0};
  {
    AsyncWriterCycle cycle(&writer);
    for (int i = 0; i < 9; ++i) writer.Submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 9);
  const auto failing = [&] {
    AsyncWriterCycle cycle(&writer);
    writer.Submit([] { throw std::runtime_error("store failed"); });
  };
  EXPECT_EQ(Thrown<std::runtime_error>(failing), "store failed");
  EXPECT_FALSE(writer.cycle_open());
}

TEST(AsyncWriterCycleTest, AForwardThatThrowsLeavesTheWriterIdle) {
  Writer writer(Sized(2, 8));
  std::atomic<int> ran{0};
  const auto forward = [&] {
    AsyncWriterCycle cycle(&writer);
    writer.Submit([&] {
      ++ran;
      throw std::runtime_error("store failed");
    });
    throw std::logic_error("layer 1 failed");
  };
  EXPECT_EQ(Thrown<std::logic_error>(forward), "layer 1 failed");
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(writer.cycle_open());
  writer.Init();
  writer.Submit([&] { ++ran; });
  EXPECT_NO_THROW(writer.WaitAllDone());
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace rtp_llm
