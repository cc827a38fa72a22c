// SPDX-License-Identifier: Apache-2.0
// 128 channels of a row as block-scaled FP8, by neighbouring lanes.
#pragma once

#include <cuda_fp8.h>

#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

constexpr int kFp8Channels = 128;                // of a scale
constexpr int kFp8Each = kFp8Channels / kGroup;  // of a lane

// A row of padding of the scales, by the block.
template <class Args>
__device__ inline void clear_scales(const Args& args, int64_t row) {
  const int64_t blocks = args.size / kFp8Channels;
  for (int64_t block = thread_index(); block < blocks; block += thread_count()) {
    args.scales[block * args.scale_rows + row] = 0;
  }
}

template <int N>
struct Fp8Channels {
  Pack<uint8_t, N> q;
  float scale;  // the same in every lane
};

// Each of 128 / N lanes, which all call it, has N neighbouring channels; q * scale is what they
// were.
template <int N>
__device__ inline Fp8Channels<N> quantize_channels(const float (&values)[N]) {
  constexpr float kLargest = 448.0F, kLeastAmax = 1e-10F;
  float largest = kLeastAmax;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = fmaxf(largest, fabsf(values[i]));
  Fp8Channels<N> result;
  result.scale = reduce_lanes<kFp8Channels / N>(largest, Max{}) / kLargest;
  const float inverse = 1.0F / result.scale;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    result.q.element[i] = __nv_cvt_float_to_fp8(values[i] * inverse, __NV_SATFINITE, __NV_E4M3);
  }
  return result;
}

}  // namespace rtp_llm::cuda
