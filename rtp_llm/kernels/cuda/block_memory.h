// SPDX-License-Identifier: Apache-2.0
// The shared memory of a block, of the size that its launch asked for.
#pragma once

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

__device__ inline float* block_memory() {
  alignas(16) extern __shared__ float shared[];
  return shared;
}

}  // namespace rtp_llm::cuda
