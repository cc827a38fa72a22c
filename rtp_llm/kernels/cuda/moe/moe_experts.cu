// SPDX-License-Identifier: Apache-2.0
// Products of rows sorted by expert, for number types and devices that nothing faster takes: in
// float32, and on AMD's GPUs by matrix cores. And the weighted sum of each token's rows.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/grouped_linear_vector.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/pack.h"
#if defined(__HIPCC__)
#include "rtp_llm/kernels/cuda/moe/grouped_linear_matrix.h"
#endif

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kExpertsAtOnce = 5;  // rows of a sum that a thread asks for together

template <class T, int N>
__global__ void __launch_bounds__(kThreads) sum_kernel(SumExpertsArgs args) {
  const int64_t column = (int64_t{blockIdx.y} * thread_count() + thread_index()) * N;
  const int64_t token = blockIdx.x;
  let_next_start();
  wait_for_previous();
  if (column >= args.size) return;
  const T* const y = static_cast<const T*>(args.y) + column;
  float sums[N] = {};
  for (int first = 0; first < args.k; first += kExpertsAtOnce) {
    int32_t places[kExpertsAtOnce];
    float weights[kExpertsAtOnce];
    Pack<T, N> rows[kExpertsAtOnce];
#pragma unroll
    for (int j = 0; j < kExpertsAtOnce; ++j) {
      const bool has = first + j < args.k;
      places[j] = has ? args.places[token * args.k + first + j] : -1;
      weights[j] = has ? args.weights[token * args.k + first + j] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kExpertsAtOnce; ++j) {
      if (places[j] >= args.rows) places[j] = -1;
      if (places[j] >= 0) rows[j] = load<N>(y + places[j] * args.size);
    }
#pragma unroll
    for (int j = 0; j < kExpertsAtOnce; ++j) {
      if (places[j] < 0) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += weights[j] * to_float(rows[j].element[i]);
    }
  }
  store(static_cast<T*>(args.out) + token * args.size + column, narrow<T>(sums));
}

// Calls body(Products{}, bytes of shared memory).
template <class Body>
void visit_products(const GroupedLinearArgs& args, Body&& body) {
#if defined(__HIPCC__)
  if (args.dtype != DType::kFloat32 && args.k % kMatrixPack == 0 &&
      multiples(kAccessBytes, {address(args.x), address(args.weight)})) {
    if (args.dtype == DType::kBFloat16) {
      return body(MatrixProducts<BFloat16>{}, MatrixProducts<BFloat16>::kSharedBytes);
    }
    return body(MatrixProducts<Float16>{}, MatrixProducts<Float16>::kSharedBytes);
  }
#endif
  visit_float_dtype(args.dtype,
                    [&](auto element) { body(VectorProducts<decltype(element)>{}, 0); });
}

}  // namespace

RTP_LLM_OPERATOR(grouped_linear)
void grouped_linear(const GroupedLinearArgs& args, void* stream) {
  if (args.rows == 0 || args.n == 0) return;
  const char* const what = "grouped_linear";
  const dim3 grid(blocks(ceil_div(args.n, kProductColumns), what),
                  side_blocks(ceil_div(args.rows, kProductRows), what));
  visit_products(args, [&](auto products, size_t shared_bytes) {
    grouped_linear_kernel<decltype(products)>
        <<<grid, kProductThreads, shared_bytes, static_cast<Stream>(stream)>>>(args);
  });
  check_launch(what);
}

RTP_LLM_OPERATOR(sum_experts)
void sum_experts(const SumExpertsArgs& args, void* stream) {
  if (args.tokens == 0 || args.size == 0) return;
  const char* const what = "sum_experts";
  const int64_t row_bytes = args.size * element_size(args.dtype);
  const bool wide = multiples(kAccessBytes, {address(args.y), address(args.out), row_bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const int64_t threads = round_up(ceil_div(args.size, N), kGroup);
    const dim3 block(static_cast<unsigned>(threads < kThreads ? threads : kThreads));
    const dim3 grid(blocks(args.tokens, what),
                    side_blocks(ceil_div(args.size, int64_t{block.x} * N), what));
    launch_overlapped<sum_kernel<T, N>>(grid, block, 0, stream, args);
  });
  check_launch(what);
}

}  // namespace rtp_llm::cuda
