// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/activation/sigmoid_gate.h"

#include "rtp_llm/kernels/cuda/gated.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

// Rows on the first axis of the grid, chunks of them on the second; a block has several rows where
// they are short.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) gate_rows(SigmoidGateArgs args) {
  wait_for_previous();
  let_next_start();
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (row >= args.rows || column >= args.size) return;
  T* const x = static_cast<T*>(args.x) + args.x_at(row) + column;
  const T* const gate = static_cast<const T*>(args.gate) + args.gate_at(row) + column;
  const Pack<T, N> pack = load<N>(x);
  const Pack<T, N> gates = load<N>(gate);
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = sigmoid_gated<T>(to_float(pack.element[i]), to_float(gates.element[i]));
  }
  store(x, narrow<T>(values));
}

// A block for each row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_gated_rows(AddSigmoidGatedArgs args) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x;
  const int64_t first = int64_t{thread_index()} * N;
  const T* const x = static_cast<const T*>(args.x) + row * args.depth;
  const T* const gate = static_cast<const T*>(args.gate);
  float sum = 0.0f;
  for (int64_t at = first; at < args.depth; at += kThreads * N) {
    const Pack<T, N> left = load<N>(x + at);
    const Pack<T, N> right = load<N>(gate + at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += to_float(left.element[i]) * to_float(right.element[i]);
  }
  const float weight = 1.0f / (1.0f + expf(-reduce_block(sum, 0.0f, Sum{})));
  T* const out = static_cast<T*>(args.out) + row * args.size;
  const T* const y = static_cast<const T*>(args.y) + row * args.size;
  for (int64_t at = first; at < args.size; at += kThreads * N) {
    Pack<T, N> pack = load<N>(out + at);
    const Pack<T, N> added = load<N>(y + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      pack.element[i] =
          from_float<T>(to_float(pack.element[i]) + weight * to_float(added.element[i]));
    }
    store(out + at, pack);
  }
}

}  // namespace

RTP_LLM_OPERATOR(sigmoid_gate)
void sigmoid_gate(const SigmoidGateArgs& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide =
      multiples(kAccessBytes, {address(args.x), address(args.gate), args.size * bytes,
                               args.x_stride * bytes, args.x_group_stride * bytes,
                               args.gate_stride * bytes, args.gate_group_stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t packs = ceil_div(args.size, N);
    const auto chunk = static_cast<unsigned>(packs < kThreads ? packs : kThreads);
    const dim3 block(chunk, kThreads / chunk);
    const dim3 grid(blocks(ceil_div(args.rows, block.y), "sigmoid_gate"),
                    side_blocks(ceil_div(packs, chunk), "sigmoid_gate"));
    launch_overlapped<gate_rows<decltype(element), N>>(grid, block, 0, stream, args);
  });
  check_launch("sigmoid_gate");
}

RTP_LLM_OPERATOR(add_sigmoid_gated)
void add_sigmoid_gated(const AddSigmoidGatedArgs& args, void* stream) {
  if (args.rows == 0 || args.size == 0) return;
  const int64_t bytes = element_size(args.dtype);
  const bool wide =
      multiples(kAccessBytes, {address(args.out), address(args.y), address(args.x),
                               address(args.gate), args.size * bytes, args.depth * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const dim3 grid(blocks(args.rows, "add_sigmoid_gated"));
    launch_overlapped<add_gated_rows<decltype(element), N>>(grid, dim3(kThreads), 0, stream, args);
  });
  check_launch("add_sigmoid_gated");
}

}  // namespace rtp_llm::cuda
