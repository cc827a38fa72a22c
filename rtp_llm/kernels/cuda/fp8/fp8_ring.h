// SPDX-License-Identifier: Apache-2.0
// The ring of k-blocks through which FP8 GEMMs get their operands and scales. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/k_block_ring.h"

namespace rtp_llm::cuda {

// Channels of a k-block and of a scale: one byte each, together a row of the ring.
constexpr int kChannels = kRowBytes;

// Shape: kStages k-blocks of kStageBytes, followed by as many times kScaleBytes of scales.
template <class Shape>
struct Fp8Ring : KBlockRing<Shape> {
  uint32_t scales;
  const uint8_t* scale_memory;

  __device__ Fp8Ring(uint8_t* raw, uint64_t* barrier_memory)
      : KBlockRing<Shape>(raw, barrier_memory) {
    scales = this->stages + Shape::kStages * Shape::kStageBytes;
    scale_memory = this->memory + Shape::kStages * Shape::kStageBytes;
  }
  __device__ uint32_t scale(int stage) const { return scales + stage * Shape::kScaleBytes; }
  __device__ const float* scale_values(int stage) const {
    return reinterpret_cast<const float*>(scale_memory + stage * Shape::kScaleBytes);
  }
};

}  // namespace rtp_llm::cuda
