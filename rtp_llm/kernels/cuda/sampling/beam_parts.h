// SPDX-License-Identifier: Apache-2.0
// Parts of arrays that the operators of beam search work on.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

// Part `index` of `size` things. Offsets are kept within them: the host cannot check them.
struct Part {
  int begin, end;

  __device__ Part(const int32_t* cu, int64_t index, int64_t size)
      : begin(within(cu[index], size)), end(max(begin, within(cu[index + 1], size))) {}

 private:
  __device__ static int within(int offset, int64_t size) {
    return offset < 0 ? 0 : offset < size ? offset : static_cast<int>(size);
  }
};

__device__ inline int count_of(const int32_t* tokens, int size, int token) {
  int count = 0;
  for (int i = 0; i < size; ++i) count += tokens[i] == token ? 1 : 0;
  return count;
}

}  // namespace rtp_llm::cuda
