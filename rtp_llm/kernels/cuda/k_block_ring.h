// SPDX-License-Identifier: Apache-2.0
// The ring of k-blocks in shared memory through which products get their operands. Only for
// sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper_cluster.h"

namespace rtp_llm::cuda {

// Bytes of a row in a k-block: what the copy engine swizzles.
constexpr int kRowBytes = 128;
// The most shared memory of a block, and of a ring in it: without the padding that aligns the ring
// to 1024 bytes, and without its barriers.
constexpr int kBlockBytes = 227 << 10;
constexpr int kRingBytes = kBlockBytes - 1024 - 256;

// Shape: kStages k-blocks of kStageBytes.
template <class Shape>
struct KBlockRing {
  uint32_t stages, barriers;
  uint8_t* memory;

  __device__ KBlockRing(uint8_t* raw, uint64_t* barrier_memory) {
    const uint32_t address = hopper::shared_address(raw);
    stages = (address + 1023) / 1024 * 1024;
    memory = raw + (stages - address);
    barriers = hopper::shared_address(barrier_memory);
    hopper::keep(stages);
    hopper::keep(barriers);
  }
  __device__ uint32_t k_block(int stage) const { return stages + stage * Shape::kStageBytes; }
  __device__ uint32_t full_barrier(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t empty_barrier(int stage) const {
    return barriers + 8 * (Shape::kStages + stage);
  }
  // A stage is empty once `readers` warps have read it.
  __device__ void init_barriers_for(int readers) const {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      hopper::init_barrier(full_barrier(stage), 1);
      hopper::init_barrier(empty_barrier(stage), readers);
    }
    hopper::publish_barriers();
  }
};

// A place in the ring, and the phase of its barriers.
template <int kStages>
struct RingPlace {
  int stage = 0, phase = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The k-blocks that a block multiplies, from `first` to `last`. Blocks start at different k-blocks,
// so that not all of them need the same tokens at once.
struct KBlockRange {
  int first, last;
  int rotation;  // which of them comes first

  __device__ int k_block(int number) const {
    const int from_first = number + rotation;
    return from_first < last - first ? first + from_first : 2 * first - last + from_first;
  }
  __device__ int k_blocks() const { return last - first; }
  __device__ void set_rotation(int number) { rotation = number % (last - first); }
};

// The sum of what the first `split` blocks of the cluster have at the same place of shared memory.
__device__ inline float4 sum_of_blocks(uint32_t place, int split) {
  float4 total = {0, 0, 0, 0};
  for (int block = 0; block < split; ++block) {
    const float4 part = hopper::load_there(hopper::in_block(place, block));
    total.x += part.x;
    total.y += part.y;
    total.z += part.z;
    total.w += part.w;
  }
  return total;
}

}  // namespace rtp_llm::cuda
