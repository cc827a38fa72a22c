// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_scatter.h"

#include "rtp_llm/kernels/cuda/fp8/fp8_row.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kGroup;

// The first row of a ragged expert. Each expert adds as much as rounding down may remove, so that
// experts never overlap.
__device__ inline int64_t start_of(const Fp8ScatterArgs& args, int64_t slot) {
  return fp8_ragged_rows(args.offsets[slot], slot);
}

// The row of q of entry `at`, of all planes, or -1 when it has no place.
__device__ inline int64_t place_of(const Fp8ScatterArgs& args, int64_t at) {
  const int64_t slot = args.ids[at];
  if (slot < 0 || slot >= args.slots) return -1;
  int64_t row = int64_t{args.places[at]} - args.offsets[slot];
  if (args.ragged && row >= 0) row += start_of(args, slot);
  if (row < 0 || row >= args.plane_rows) return -1;
  return args.ragged ? row : slot * args.plane_rows + row;
}

// Writes what the products and the sum read: the first block writes counts (and starts), the first
// block of each token its rows.
__device__ inline void write_plan(const Fp8ScatterArgs& args, int64_t token) {
  if (blockIdx.y != 0) return;
  if (token == 0) {
    for (int64_t slot = thread_index(); slot < args.slots; slot += kThreads) {
      args.counts[slot] = args.offsets[slot + 1] - args.offsets[slot];
    }
    for (int64_t slot = thread_index(); args.ragged && slot <= args.slots; slot += kThreads) {
      args.starts[slot] = static_cast<int32_t>(start_of(args, slot));
    }
  }
  if (token >= args.tokens) return;
  for (int64_t j = thread_index(); j < args.top_k; j += kThreads) {
    const int64_t at = token * args.top_k + j;
    args.rows[at] = static_cast<int32_t>(place_of(args, at));
  }
}

// A warp for 128 channels of a token: quantised once, written to each of its experts.
template <class T, bool wide>
__global__ void __launch_bounds__(kThreads) scatter(Fp8ScatterArgs args) {
  wait_for_previous();
  let_next_start();
  const int64_t token = blockIdx.x;
  write_plan(args, token);
  const int64_t block = int64_t{blockIdx.y} * kWarps + thread_index() / kGroup;
  if (token >= args.tokens || block * kFp8Channels >= args.columns) return;
  const int lane = thread_index() % kGroup;
  const int64_t column = block * kFp8Channels + lane * kFp8Each;
  const T* const x = static_cast<const T*>(args.x) + token * args.hidden;
  float values[kFp8Each];
  if (wide && column + kFp8Each <= args.hidden) {
    widen(load<kFp8Each>(x + column), values);
  } else {
#pragma unroll
    for (int i = 0; i < kFp8Each; ++i) {
      values[i] = column + i < args.hidden ? to_float(x[column + i]) : 0.0F;
    }
  }
  const Fp8Channels<kFp8Each> quantized = quantize_channels(values);
  for (int64_t j = 0; j < args.top_k; ++j) {
    const int64_t place = place_of(args, token * args.top_k + j);
    if (place < 0) continue;
    store(static_cast<uint8_t*>(args.q) + place * args.columns + column, quantized.q);
    if (lane != 0) continue;
    const int64_t plane = place / args.plane_rows, row = place % args.plane_rows;
    const int64_t blocks = args.columns / kFp8Channels;
    args.scales[(plane * blocks + block) * args.scale_rows + row] = quantized.scale;
  }
}

}  // namespace

void fp8_scatter(const Fp8ScatterArgs& args, void* stream) {
  if (args.slots == 0) return;
  const bool wide =
      multiples(kFp8Each, {args.hidden}) && multiples(kAccessBytes, {address(args.x)});
  // Without a token the counts are still to be written.
  const dim3 grid(
      blocks(args.tokens > 0 ? args.tokens : 1, "scatter_fp8"),
      side_blocks(ceil_div(args.columns, int64_t{kFp8Channels} * kWarps), "scatter_fp8"));
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (wide) {
      launch_overlapped<scatter<T, true> >(grid, dim3(kThreads), 0, stream, args);
    } else {
      launch_overlapped<scatter<T, false> >(grid, dim3(kThreads), 0, stream, args);
    }
  });
  check_launch("scatter_fp8");
}

RTP_LLM_OPERATOR(scatter_fp8)
void scatter_fp8(const ScatterFp8Args& args, void* stream) { fp8_scatter(args, stream); }

RTP_LLM_OPERATOR(scatter_fp8_ragged)
void scatter_fp8_ragged(const ScatterFp8RaggedArgs& args, void* stream) {
  fp8_scatter(args, stream);
}

}  // namespace rtp_llm::cuda
