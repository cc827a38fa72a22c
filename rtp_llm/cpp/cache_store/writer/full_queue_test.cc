// SPDX-License-Identifier: Apache-2.0
// A queue without room, and shutdown while tasks are queued.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "rtp_llm/cpp/cache_store/writer/async_writer.h"
#include "rtp_llm/cpp/cache_store/writer/gate.h"
#include "rtp_llm/cpp/cache_store/writer/writer_fixture.h"

namespace rtp_llm {
namespace {

using Writer = CacheStoreAsyncWriter;

// A writer of one thread, held up by a task at a gate, with the other places of its queue taken.
class FullQueueTest : public testing::Test {
 protected:
  void TearDown() override { gate->Open(); }

  void Fill(AsyncWriterOptions options) {
    options.num_threads = 1;
    writer = std::make_unique<Writer>(options);
    writer->Init();
    writer->Submit(Count(), gate);
    gate->AwaitWaiters(1);
    for (int i = 0; i < options.queue_size; ++i) writer->Submit(Count());
    ASSERT_EQ(writer->queued(), options.queue_size);
  }
  Writer::Task Count() {
    return [this] { ++ran; };
  }

  const std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::atomic<int> ran{0};
  std::unique_ptr<Writer> writer;
};

TEST_F(FullQueueTest, Raises) {
  Fill(Sized(1, 3, WhenFull::kRaise));
  const auto message = Thrown<WriterQueueFullError>([&] { writer->Submit(Count()); });
  EXPECT_NE(message.find("3 tasks queued"), std::string::npos) << message;
  EXPECT_EQ(writer->pending(), 4);
  gate->Open();
  writer->WaitAllDone();
  EXPECT_EQ(ran, 4) << "what was refused never runs";
  writer->Init();
  writer->Submit(Count());
  writer->WaitAllDone();
  EXPECT_EQ(ran, 5);
}

TEST_F(FullQueueTest, BlocksUntilTheDeadline) {
  AsyncWriterOptions options = Sized(1, 2);
  options.submit_timeout = std::chrono::milliseconds(3);
  Fill(options);
  const auto message = Thrown<WriterQueueFullError>([&] { writer->Submit(Count()); });
  EXPECT_NE(message.find("no room within 3 ms"), std::string::npos) << message;
  EXPECT_EQ(writer->pending(), 3);
  gate->Open();
  writer->WaitAllDone();
  EXPECT_EQ(ran, 3);
}

TEST_F(FullQueueTest, BlocksUntilThereIsRoom) {
  Fill(Sized(1, 2));
  std::thread submitter([&] { writer->Submit(Count()); });
  while (writer->pending() < 4) std::this_thread::yield();
  gate->Open();
  writer->WaitAllDone();  // counts the one that waited for room
  EXPECT_EQ(ran, 4);
  submitter.join();
}

TEST_F(FullQueueTest, TryingLeavesTheArguments) {
  Fill(Sized(1, 2));
  Writer::Task task = Count();
  std::shared_ptr<Waitable> ready = gate;
  EXPECT_FALSE(writer->TrySubmit(&task, &ready));
  ASSERT_TRUE(task);
  EXPECT_EQ(ready, gate);
  EXPECT_EQ(writer->pending(), 3);
  gate->Open();
  while (!writer->TrySubmit(&task, &ready)) std::this_thread::yield();
  EXPECT_FALSE(ready);
  writer->WaitAllDone();
  EXPECT_EQ(ran, 4);
  task = Count();
  EXPECT_THROW(writer->TrySubmit(&task, &ready), LifeCycleError);
  EXPECT_TRUE(task);
}

TEST_F(FullQueueTest, ShutdownDrains) {
  Fill(Sized(1, 3));
  std::thread submitter(
      [&] { ExpectRefused([&] { writer->Submit(Count()); }, "submit was overtaken by shutdown"); });
  while (writer->pending() < 5) std::this_thread::yield();
  std::thread opener([&]() {
    submitter.join();
    gate->Open();
  });
  writer->Shutdown(Queued::kDrain);
  opener.join();
  EXPECT_EQ(ran, 4);
  EXPECT_EQ(writer->pending(), 0);
  EXPECT_NO_THROW(writer->WaitAllDone()) << "the cycle was open, and all of it ran";
  ExpectRefused([&] { writer->WaitAllDone(); }, "after shutdown");
}

TEST_F(FullQueueTest, ShutdownDropsAndWhoWaitsIsTold) {
  Fill(Sized(1, 3));
  std::thread waiter([&]() {
    const auto message = Thrown<TasksDroppedError>([&] { writer->WaitAllDone(); });
    EXPECT_NE(message.find("dropped 3 tasks"), std::string::npos) << message;
  });
  std::thread opener([&]() {
    while (writer->queued() > 0) std::this_thread::yield();
    gate->Open();  // the running task is waited for
  });
  writer->Shutdown(Queued::kDrop);
  EXPECT_EQ(ran, 1);
  waiter.join();
  opener.join();
}

TEST_F(FullQueueTest, DroppingCutsDrainingShort) {
  Fill(Sized(1, 3));
  std::thread drainer([&] { writer->Shutdown(Queued::kDrain); });
  std::thread dropper([&] { writer->Shutdown(Queued::kDrop); });
  while (writer->queued() > 0) std::this_thread::yield();
  gate->Open();
  drainer.join();
  dropper.join();
  EXPECT_EQ(ran, 1);
  EXPECT_THROW(writer->WaitAllDone(), TasksDroppedError);
}

TEST_F(FullQueueTest, AFailedTaskComesBeforeDroppedOnes) {
  writer = std::make_unique<Writer>(Sized(1, 3));
  writer->Init();
  writer->Submit([] { throw std::runtime_error("store failed"); });
  writer->Submit(Count(), gate);
  gate->AwaitWaiters(1);
  writer->Submit(Count());
  std::thread opener([&]() {
    while (writer->queued() > 0) std::this_thread::yield();
    gate->Open();
  });
  writer->Shutdown(Queued::kDrop);
  opener.join();
  EXPECT_EQ(Thrown<std::runtime_error>([&] { writer->WaitAllDone(); }), "store failed");
}

TEST_F(FullQueueTest, TheDestructorDropsAndWaitsForWhatRuns) {
  writer = std::make_unique<Writer>(Sized(1, 3));
  writer->Init();
  writer->Submit(Count(), gate);
  gate->AwaitWaiters(1);
  std::shared_ptr<Gate> opens(gate.get(), [](Gate* closed) { closed->Open(); });
  writer->Submit([this, opens] { ++ran; });
  opens.reset();
  EXPECT_EQ(ran, 0);
  writer.reset();  // to drop the second task opens the gate of the first
  EXPECT_EQ(ran, 1);
}

TEST_F(FullQueueTest, ASubmitDuringTheWaitIsRefused) {
  Fill(Sized(1, 3));
  std::thread waiter([&] { writer->WaitAllDone(); });
  for (bool refused = false; !refused;) {  // until the other thread's wait has begun
    Writer::Task task = [] {};
    std::shared_ptr<Waitable> ready;
    try {
      writer->TrySubmit(&task, &ready);
    } catch (const LifeCycleError& error) {
      EXPECT_NE(std::string(error.what()).find("submit after wait_all_done"), std::string::npos);
      refused = true;
    }
  }
  ExpectRefused([&] { writer->WaitAllDone(); }, "wait_all_done twice");
  ExpectRefused([&] { writer->Init(); }, "init twice");
  gate->Open();
  waiter.join();
  EXPECT_EQ(ran, 4);
}

}  // namespace
}  // namespace rtp_llm
