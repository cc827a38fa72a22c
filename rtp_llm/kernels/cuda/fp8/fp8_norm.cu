// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_norm.h"

#include "rtp_llm/kernels/cuda/fp8/fp8_row.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kChannels = kFp8Channels, kEach = kFp8Each;  // of a warp at a time, of a lane
constexpr int kMaxWarps = kMaxThreads / kGroup;
constexpr int kKept = kMaxFp8NormChannels / (kMaxWarps * kChannels);  // a lane's share in packs

// residual of the row and, where there is one, pending: their rounded sum, which is left in
// residual.
template <class T>
__device__ inline Pack<T, kEach> take(const NormFp8Args& args, int64_t row, int64_t column) {
  T* const residual = static_cast<T*>(args.residual) + row * args.residual_stride + column;
  Pack<T, kEach> pack = load<kEach>(residual);
  if (args.pending == nullptr) return pack;
  const T* const pending = static_cast<const T*>(args.pending) + row * args.pending_stride;
  const Pack<T, kEach> other = load<kEach>(pending + column);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    pack.element[i] = from_float<T>(to_float(pack.element[i]) + to_float(other.element[i]));
  }
  store(residual, pack);
  return pack;
}

// A block for each row, and for each row of padding of the scales.
template <class T>
__global__ void __launch_bounds__(kMaxThreads) norm_rows(NormFp8Args args) {
  const int64_t row = blockIdx.x, blocks = args.size / kChannels;
  const int lane = thread_index() % kGroup, warp = thread_index() / kGroup;
  const int warps = thread_count() / kGroup;
  Pack<T, kEach> weight[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t block = warp + k * warps;
    if (block >= blocks) break;
    weight[k] = load<kEach>(static_cast<const T*>(args.weight) + block * kChannels + lane * kEach);
  }
  wait_for_previous();
  let_next_start();
  if (row >= args.rows) return clear_scales(args, row);
  float values[kKept][kEach], sum = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t block = warp + k * warps;
    if (block >= blocks) break;
    widen(take<T>(args, row, block * kChannels + lane * kEach), values[k]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += values[k][i] * values[k][i];
  }
  sum = reduce_block(sum, 0.0F, Sum{});
  const float inverse = 1.0F / sqrtf(sum / static_cast<float>(args.size) + args.eps);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t block = warp + k * warps;
    if (block >= blocks) break;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      values[k][i] *= inverse * (to_float(weight[k].element[i]) + args.offset);
    }
    const Fp8Channels<kEach> quantized = quantize_channels(values[k]);
    uint8_t* const q = static_cast<uint8_t*>(args.q) + row * args.size;
    store(q + block * kChannels + lane * kEach, quantized.q);
    if (lane == 0) args.scales[block * args.scale_rows + row] = quantized.scale;
  }
}

}  // namespace

RTP_LLM_OPERATOR(norm_fp8)
void norm_fp8(const NormFp8Args& args, void* stream) {
  if (args.rows == 0) return;
  const int64_t warps = args.size / kChannels;
  const int64_t threads = kGroup * (warps < kMaxWarps ? warps : kMaxWarps);
  visit_float_dtype(args.dtype, [&](auto element) {
    launch_overlapped<norm_rows<decltype(element)> >(dim3(blocks(args.scale_rows, "norm_fp8")),
                                                     dim3(static_cast<unsigned int>(threads)), 0,
                                                     stream, args);
  });
  check_launch("norm_fp8");
}

}  // namespace rtp_llm::cuda
