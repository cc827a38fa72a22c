// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/simulation/block.h"

#include <ucontext.h>

#include <cstring>
#include <memory>
#include <vector>

#include "rtp_llm/kernels/cuda/simulation/hip/hip_runtime.h"

namespace rtp_llm::cuda {
alignas(16) extern float shared[simulation::kSharedBytes / sizeof(float)];
alignas(16) float shared[simulation::kSharedBytes / sizeof(float)];
}  // namespace rtp_llm::cuda

namespace rtp_llm::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;

// Where `members` threads wait for each other; fewer once some have ended.
struct Barrier {
  int members = 0;
  int waiting = 0;
  unsigned int passed = 0;

  void release_if_complete() {
    if (members == 0 || waiting < members) return;
    waiting = 0;
    ++passed;
  }
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool ended = false;
};

struct Wave {
  Barrier barrier;
  alignas(64) unsigned char slots[kWave * kExchangedBytes];
};

const std::function<void()>* running;
std::vector<Thread> block;
std::vector<Wave> waves;
Barrier of_block;
ucontext_t scheduler;

int thread() { return static_cast<int>(threadIdx.x); }
Wave& wave() { return waves[static_cast<size_t>(thread() / kWave)]; }

void wait(Barrier& barrier) {
  const unsigned int before = barrier.passed;
  ++barrier.waiting;
  barrier.release_if_complete();
  Thread& self = block[static_cast<size_t>(thread())];
  while (barrier.passed == before) swapcontext(&self.context, &scheduler);
}

void run_thread() {
  (*running)();
  for (Barrier* barrier : {&wave().barrier, &of_block}) {
    --barrier->members;
    barrier->release_if_complete();
  }
  block[static_cast<size_t>(thread())].ended = true;
}

void start(Thread& thread) {
  if (!thread.stack) thread.stack = std::make_unique<char[]>(kStackBytes);
  thread.ended = false;
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = &scheduler;
  makecontext(&thread.context, run_thread, 0);
}

void run_block() {
  std::memset(cuda::shared, 0xff, sizeof cuda::shared);
  of_block = {static_cast<int>(block.size()), 0, 0};
  for (size_t w = 0; w < waves.size(); ++w) {
    waves[w].barrier = {static_cast<int>(std::min<size_t>(kWave, block.size() - w * kWave)), 0, 0};
  }
  for (Thread& thread : block) start(thread);
  for (bool any = true; any;) {
    any = false;
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i].ended) continue;
      any = true;
      threadIdx.x = static_cast<unsigned int>(i);
      swapcontext(&scheduler, &block[i].context);
    }
  }
}

}  // namespace

int lane() { return thread() % kWave; }
void wait_for_wave() { wait(wave().barrier); }
void wait_for_block() { wait(of_block); }
void* exchange_slots() { return wave().slots; }

void run_grid(Index grid, int threads, const std::function<void()>& kernel) {
  running = &kernel;
  block = std::vector<Thread>(static_cast<size_t>(threads));
  waves = std::vector<Wave>(static_cast<size_t>((threads + kWave - 1) / kWave));
  gridDim = grid;
  blockDim = {static_cast<unsigned int>(threads), 1, 1};
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run_block();
    }
  }
}

}  // namespace rtp_llm::simulation
