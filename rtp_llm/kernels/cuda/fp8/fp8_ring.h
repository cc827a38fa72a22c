// The ring of k-blocks in shared memory through which FP8 GEMMs get their operands. Only for
// sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper_cluster.h"

namespace rtp_llm::cuda {

// Of a k-block: a row of what the copy engine swizzles, and of a scale.
constexpr int kChannels = 128;

// Shape: kStages k-blocks of kStageBytes, and as many times kScaleBytes of scales behind them.
template <class Shape>
struct Fp8Ring {
  uint32_t stages, scales, barriers;
  const uint8_t* scale_memory;
  uint8_t* memory;

  __device__ Fp8Ring(uint8_t* raw, uint64_t* barrier_memory) {
    const uint32_t address = hopper::shared_address(raw);
    stages = (address + 1023) / 1024 * 1024;
    memory = raw + (stages - address);
    scales = stages + Shape::kStages * Shape::kStageBytes;
    scale_memory = memory + Shape::kStages * Shape::kStageBytes;
    barriers = hopper::shared_address(barrier_memory);
    hopper::keep(stages);
    hopper::keep(barriers);
  }
  __device__ uint32_t k_block(int stage) const { return stages + stage * Shape::kStageBytes; }
  __device__ uint32_t scale(int stage) const { return scales + stage * Shape::kScaleBytes; }
  __device__ const float* scale_values(int stage) const {
    return reinterpret_cast<const float*>(scale_memory + stage * Shape::kScaleBytes);
  }
  __device__ uint32_t full_barrier(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t empty_barrier(int stage) const {
    return barriers + 8 * (Shape::kStages + stage);
  }

 protected:
  // A stage is empty when so many warps have read it.
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

}  // namespace rtp_llm::cuda
