// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_activation.h"

#include <cuda_fp8.h>

#include "rtp_llm/kernels/cuda/gated.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kGroup;
constexpr int kChannels = 128;             // of a scale, and of a warp
constexpr int kEach = kChannels / kGroup;  // of a lane
constexpr float kLargest = 448.0F, kLeastAmax = 1e-10F;

// A lane's channels from `column` on; channels past the last one are zeros.
template <class T, bool wide>
__device__ inline void load_channels(const T* row, int64_t column, int64_t columns,
                                     float (&to)[kEach]) {
  if (wide && column + kEach <= columns) return widen(load<kEach>(row + column), to);
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = column + i < columns ? to_float(row[column + i]) : 0.0F;
}

template <bool wide>
__device__ inline void store_channels(uint8_t* row, int64_t column, int64_t columns,
                                      const float (&values)[kEach], float inverse) {
  Pack<uint8_t, kEach> pack;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    pack.element[i] = __nv_cvt_float_to_fp8(values[i] * inverse, __NV_SATFINITE, __NV_E4M3);
  }
  if (wide && column + kEach <= columns) return store(row + column, pack);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (column + i < columns) row[column + i] = pack.element[i];
  }
}

// A warp for 128 channels of a row: rows on the first axis of the grid, channels on the second.
template <class T, bool wide, bool gated>
__global__ void __launch_bounds__(kThreads) quantize(Fp8ActivationArgs args) {
  wait_for_previous();
  let_next_start();
  const int64_t group = blockIdx.x / args.scale_rows, row = blockIdx.x % args.scale_rows;
  const int64_t block = int64_t{blockIdx.y} * kWarps + thread_index() / kGroup;
  const int64_t blocks = (args.columns + kChannels - 1) / kChannels;
  const int lane = thread_index() % kGroup;
  if (block >= blocks) return;
  float* const scale_place = args.scales + (group * blocks + block) * args.scale_rows + row;
  if (row >= args.rows) {
    if (lane == 0) *scale_place = 0;
    return;
  }
  if (args.masked_m != nullptr && row >= args.masked_m[group]) return;
  const int64_t at = group * args.rows + row, column = block * kChannels + lane * kEach;
  const T* const x = static_cast<const T*>(args.x) + at * args.columns * (gated ? 2 : 1);
  float values[kEach];
  load_channels<T, wide>(x, column, args.columns, values);
  if (gated) {
    float up[kEach];
    load_channels<T, wide>(x + args.columns, column, args.columns, up);
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[i] = Silu{}(values[i]) * up[i];
  }
  float largest = kLeastAmax;
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, fabsf(values[i]));
  for (int mask = 1; mask < kGroup; mask *= 2) largest = fmaxf(largest, exchange(largest, mask));
  const float scale = largest / kLargest;
  if (lane == 0) *scale_place = scale;
  store_channels<wide>(static_cast<uint8_t*>(args.q) + at * args.columns, column, args.columns,
                       values, 1.0F / scale);
}

template <class T, bool wide>
void launch(const Fp8ActivationArgs& args, void* stream) {
  const dim3 grid(blocks(args.groups * args.scale_rows, "fp8_quantize"),
                  side_blocks(ceil_div(args.columns, kChannels * kWarps), "fp8_quantize"));
  if (args.gated) {
    launch_overlapped<quantize<T, wide, true> >(grid, dim3(kThreads), 0, stream, args);
  } else {
    launch_overlapped<quantize<T, wide, false> >(grid, dim3(kThreads), 0, stream, args);
  }
}

}  // namespace

void fp8_activation(const Fp8ActivationArgs& args, void* stream) {
  if (args.groups == 0 || args.rows == 0 || args.columns == 0) return;
  // A row begins where an access of its kind may: kEach elements.
  const bool wide = multiples(kEach, {args.columns}) &&
                    multiples(kAccessBytes, {address(args.x), address(args.q)});
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    wide ? launch<T, true>(args, stream) : launch<T, false>(args, stream);
  });
  check_launch("fp8_quantize");
}

RTP_LLM_OPERATOR(fp8_quantize)
void fp8_quantize(const Fp8QuantizeArgs& args, void* stream) { fp8_activation(args, stream); }

RTP_LLM_OPERATOR(silu_and_mul_fp8)
void silu_and_mul_fp8(const SiluAndMulFp8Args& args, void* stream) { fp8_activation(args, stream); }

}  // namespace rtp_llm::cuda
