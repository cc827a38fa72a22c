// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/worker/step_channel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace rtp_llm {
namespace {

constexpr double kTimeout = 60;

class Memory {
 public:
  Memory()
      : data_(mmap(nullptr, StepChannel::Bytes() + 4096, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Memory() { munmap(data_, StepChannel::Bytes() + 4096); }
  void* data() const { return data_; }
  // After the channel: in place of the arrays of a plan.
  int32_t* plan() const {
    return reinterpret_cast<int32_t*>(static_cast<char*>(data_) + StepChannel::Bytes());
  }

 private:
  void* const data_;
};

// Reads each step's number and plan, answers with their sum.
void Work(const Memory& memory, int32_t workers, int32_t worker, int32_t spin, uint32_t steps) {
  StepChannel channel(memory.data(), workers, spin);
  for (uint32_t step = 1; step <= steps; ++step) {
    if (channel.AwaitStep(step - 1, kTimeout) != step) _exit(2);
    const int32_t sum = channel.numbers()[0] + memory.plan()[0];
    channel.Take(worker, step);
    memory.plan()[16 + 2 * worker + step % 2] = sum;
    channel.Finish(worker, step);
  }
}

void Publish(StepChannel* channel, const Memory& memory, int32_t number) {
  ASSERT_TRUE(channel->AwaitTaken(channel->published(), kTimeout));
  memory.plan()[0] = 3 * number;
  channel->Publish(&number, 1);
}

class Spinning : public ::testing::TestWithParam<int32_t> {};

TEST_P(Spinning, ThreadsAnswerEveryStep) {
  const Memory memory;
  constexpr int32_t kWorkers = 3;
  constexpr int32_t kSteps = 2000;
  const int32_t spin = GetParam();
  StepChannel channel(memory.data(), kWorkers, spin);
  std::vector<std::thread> threads;
  for (int32_t worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&memory, spin, worker] { Work(memory, kWorkers, worker, spin, kSteps); });
  }
  for (int32_t step = 1; step <= kSteps; ++step) {
    Publish(&channel, memory, step);
    ASSERT_TRUE(channel.AwaitFinished(step, kTimeout));
    for (int32_t worker = 0; worker < kWorkers; ++worker) {
      ASSERT_EQ(memory.plan()[16 + 2 * worker + step % 2], 4 * step);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Spinning, ProcessesAnswerEveryStep) {
  const Memory memory;
  constexpr int32_t kSteps = 500;
  StepChannel channel(memory.data(), 1, GetParam());
  const int32_t spin = GetParam();
  const pid_t child = fork();
  if (child == 0) {
    Work(memory, 1, 0, spin, kSteps);
    _exit(0);
  }
  for (int32_t step = 1; step <= kSteps; ++step) {
    Publish(&channel, memory, step);
    if (step % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(channel.AwaitFinished(step, kTimeout));
    ASSERT_EQ(memory.plan()[16 + step % 2], 4 * step);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(StepChannel, Spinning, ::testing::Values(0, 50));

TEST(StepChannel, NobodyWaitsLongerThanAsked) {
  const Memory memory;
  StepChannel channel(memory.data(), 2, 10);
  EXPECT_EQ(channel.AwaitStep(0, 0.01), 0u);
  EXPECT_TRUE(channel.AwaitTaken(0, 0.0)) << "nothing was published";
  channel.Publish(nullptr, 0);
  channel.Finish(0, 1);
  EXPECT_FALSE(channel.AwaitFinished(1, 0.01)) << "the second worker has not";
  channel.Finish(1, 1);
  EXPECT_TRUE(channel.AwaitFinished(1, 0.01));
  EXPECT_FALSE(channel.AwaitTaken(1, 0.0));
}

TEST(StepChannel, WhoSpinsWaitsNoLongerThanAsked) {
  const Memory memory;
  const StepChannel channel(memory.data(), 1, 60'000'000);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(channel.AwaitStep(0, 0.0), 0u);
  EXPECT_FALSE(channel.AwaitTaken(1, 0.001));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

TEST(StepChannel, WithoutWorkersNobodyIsWaitedFor) {
  const Memory memory;
  StepChannel channel(memory.data(), 0, 10);
  const int32_t numbers[] = {4, 5};
  channel.Publish(numbers, 2);
  EXPECT_TRUE(channel.AwaitTaken(1, 0.0));
  EXPECT_EQ(channel.numbers()[1], 5);
}

TEST(StepChannel, RefusesWhatItCannotHold) {
  const Memory memory;
  EXPECT_THROW(StepChannel(memory.data(), -1, 10), std::invalid_argument);
  EXPECT_THROW(StepChannel(memory.data(), kMaxChannelWorkers + 1, 10), std::invalid_argument);
  StepChannel channel(memory.data(), 1, 10);
  EXPECT_THROW(channel.Publish(channel.numbers(), kMaxStepNumbers + 1), std::invalid_argument);
}

}  // namespace
}  // namespace rtp_llm
