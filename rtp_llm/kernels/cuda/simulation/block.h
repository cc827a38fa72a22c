// SPDX-License-Identifier: Apache-2.0
// A block of a kernel for AMD GPUs on the host: its threads are coroutines that go on together
// where a wave or the block does, in waves of 64.
#pragma once

#include <cstddef>
#include <functional>

namespace rtp_llm::simulation {

struct Index {
  unsigned int x = 0, y = 0, z = 0;
};

constexpr int kWave = 64;
constexpr size_t kSharedBytes = 64 << 10;  // of a block on CDNA3
constexpr size_t kExchangedBytes = 64;     // of a lane, at once

// Runs `kernel` as every thread of every block of a grid. Shared memory begins as NaN in each
// block. One grid at a time in a process.
void run_grid(Index grid, int threads, const std::function<void()>& kernel);

// For the functions that stand in for a GPU's: called by a thread of the block.
int lane();
void wait_for_wave();
void wait_for_block();
void* exchange_slots();  // of this thread's wave: kExchangedBytes for each lane

// What all lanes of the wave gave, in order of lanes; valid until the next wait.
template <class T>
const T* share(const T& value) {
  static_assert(sizeof(T) <= kExchangedBytes);
  T* const values = static_cast<T*>(exchange_slots());
  values[lane()] = value;
  wait_for_wave();
  return values;
}

}  // namespace rtp_llm::simulation
