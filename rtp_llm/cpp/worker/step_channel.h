// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace rtp_llm {

// The numbers of a step that are no arrays.
constexpr int32_t kMaxStepNumbers = 64;
constexpr int32_t kMaxChannelWorkers = 64;

// Hands steps over to workers in other processes, and their answers back, through shared memory and
// one counter each: nothing is serialised, and who waits looks at the counter for a while before it
// sleeps (futex). One engine publishes; each worker has a number of its own.
//
// A step goes: Publish() -> every worker's AwaitStep() -> Take() once the plan's arrays may change
// -> Finish() once its answer lies where the engine reads it. Steps are counted from 1 up, modulo
// 2^32.
class StepChannel {
 public:
  // Memory for a channel of so many workers; it must start as zeros and be shared by all of them.
  static size_t Bytes();

  // Does not own `memory`. `num_workers`: none where all ranks but the engine's are on other
  // machines; `spin_microseconds`: how long to look before sleeping.
  StepChannel(void* memory, int32_t num_workers, int32_t spin_microseconds);

  // The engine's side; the newest step must be taken before the next one is published.
  void Publish(const int32_t* numbers, int32_t count);
  // Until all workers have taken, or finished, `step`; false when that many seconds pass first.
  bool AwaitTaken(uint32_t step, double seconds) const;
  bool AwaitFinished(uint32_t step, double seconds) const;
  uint32_t published() const;

  // A worker's side: waits for a step after `last`; the newest one, or `last` when the seconds
  // pass.
  uint32_t AwaitStep(uint32_t last, double seconds) const;
  // The numbers of the published step.
  const int32_t* numbers() const;
  void Take(int32_t worker, uint32_t step);
  void Finish(int32_t worker, uint32_t step);

 private:
  struct Shared;
  Shared* const shared_;
  const int32_t num_workers_;
  const int32_t spin_microseconds_;
};

}  // namespace rtp_llm
