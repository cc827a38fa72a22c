// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/worker/step_channel.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

namespace rtp_llm {
namespace {

using Clock = std::chrono::steady_clock;

// A counter on a cache line of its own, and how many sleep until it changes.
struct alignas(64) Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared by processes");

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Steps wrap around.
bool Reached(uint32_t value, uint32_t step) { return static_cast<int32_t>(value - step) >= 0; }

void Set(Counter* counter, uint32_t value) {
  counter->value.store(value, std::memory_order_seq_cst);
  // A sleeper counts itself before it looks a last time: either it sees the value, or it is seen.
  if (counter->sleepers.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &counter->value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Waits until the counter reaches `step`; false at the deadline.
bool Await(Counter* counter, uint32_t step, int32_t spin_microseconds, double seconds) {
  if (Reached(counter->value.load(std::memory_order_acquire), step)) return true;
  const Clock::time_point began = Clock::now();
  const auto deadline =
      began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const Clock::time_point spin_until =
      std::min(deadline, began + std::chrono::microseconds(spin_microseconds));
  do {
    for (int i = 0; i < 64; ++i) {
      if (Reached(counter->value.load(std::memory_order_acquire), step)) return true;
      Pause();
    }
  } while (Clock::now() < spin_until);
  counter->sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool reached = false;
  while (true) {
    const uint32_t seen = counter->value.load(std::memory_order_seq_cst);
    reached = Reached(seen, step);
    const std::chrono::duration<double> left = deadline - Clock::now();
    if (reached || left.count() <= 0) break;
    const auto whole = static_cast<time_t>(left.count());
    const timespec timeout{whole,
                           static_cast<long>((left.count() - static_cast<double>(whole)) * 1e9)};
    syscall(SYS_futex, &counter->value, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  }
  counter->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return reached;
}

}  // namespace

struct StepChannel::Shared {
  Counter step;
  Counter taken[kMaxChannelWorkers];
  Counter finished[kMaxChannelWorkers];
  int32_t numbers[kMaxStepNumbers];
};

size_t StepChannel::Bytes() { return sizeof(Shared); }

StepChannel::StepChannel(void* memory, int32_t num_workers, int32_t spin_microseconds)
    : shared_(static_cast<Shared*>(memory)),
      num_workers_(num_workers),
      spin_microseconds_(spin_microseconds) {
  if (num_workers < 0 || num_workers > kMaxChannelWorkers) {
    throw std::invalid_argument("num_workers=" + std::to_string(num_workers) +
                                " must be from 0 to " + std::to_string(kMaxChannelWorkers));
  }
}

void StepChannel::Publish(const int32_t* numbers, int32_t count) {
  if (count < 0 || count > kMaxStepNumbers) {
    throw std::invalid_argument(std::to_string(count) + " numbers, at most " +
                                std::to_string(kMaxStepNumbers) + " fit");
  }
  if (count > 0) std::memcpy(shared_->numbers, numbers, sizeof(int32_t) * count);
  Set(&shared_->step, published() + 1);
}

uint32_t StepChannel::published() const {
  return shared_->step.value.load(std::memory_order_relaxed);
}

bool StepChannel::AwaitTaken(uint32_t step, double seconds) const {
  for (int32_t worker = 0; worker < num_workers_; ++worker) {
    if (!Await(&shared_->taken[worker], step, spin_microseconds_, seconds)) return false;
  }
  return true;
}

bool StepChannel::AwaitFinished(uint32_t step, double seconds) const {
  for (int32_t worker = 0; worker < num_workers_; ++worker) {
    if (!Await(&shared_->finished[worker], step, spin_microseconds_, seconds)) return false;
  }
  return true;
}

uint32_t StepChannel::AwaitStep(uint32_t last, double seconds) const {
  if (!Await(&shared_->step, last + 1, spin_microseconds_, seconds)) return last;
  return shared_->step.value.load(std::memory_order_acquire);
}

const int32_t* StepChannel::numbers() const { return shared_->numbers; }

void StepChannel::Take(int32_t worker, uint32_t step) { Set(&shared_->taken[worker], step); }

void StepChannel::Finish(int32_t worker, uint32_t step) { Set(&shared_->finished[worker], step); }

}  // namespace rtp_llm
