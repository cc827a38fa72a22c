// SPDX-License-Identifier: Apache-2.0
// A warp selects the experts of a token, and one block sorts the entries by expert. Of very few
// tokens one block does both: there a launch more costs as much as the work of a block.
#include "rtp_llm/kernels/cuda/moe/moe_few.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe_few_route.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

__global__ void __launch_bounds__(kRouteThreads, 1) order_kernel(RouteArgs args) {
  __shared__ Buckets buckets;
  extern __shared__ int entries[];  // ids, then slots
  const int count = static_cast<int>(args.sort.count);
  buckets.clear();
  let_next_start();
  wait_for_previous();
  for (int i = thread_index(); i < count; i += kRouteThreads) entries[i] = args.ids[i];
  __syncthreads();
  sort(args, entries, entries + count, buckets);
}

template <class T>
void route(const RouteArgs& args, void* stream) {
  if (args.topk.tokens <= kOneBlockTokens) return route_in_one_block<T>(args, stream);
  select_experts<T>(args, stream);
  launch_overlapped<order_kernel>(dim3(1), dim3(kRouteThreads),
                                  static_cast<size_t>(2 * args.sort.count) * sizeof(int), stream,
                                  args);
}

constexpr int kSumThreads = 64;  // few: the columns of one token are several blocks'
constexpr int kAtOnce = 12;      // rows of a token that a thread asks for together

template <class T, int N>
__global__ void __launch_bounds__(kSumThreads) add_kernel(SumExpertsArgs args, int64_t stride) {
  let_next_start();
  const int64_t column = (int64_t{blockIdx.y} * kSumThreads + thread_index()) * N;
  const int64_t first = int64_t{blockIdx.x} * args.k;
  wait_for_previous();
  if (column >= args.size) return;
  T* const out = static_cast<T*>(args.out) + blockIdx.x * stride + column;
  const Pack<T, N> before = load<N>(out);
  float sums[N] = {};
  for (int begin = 0; begin < args.k; begin += kAtOnce) {
    int places[kAtOnce];
    float weights[kAtOnce];
    Pack<T, N> rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool has = begin + i < args.k;
      places[i] = has ? args.places[first + begin + i] : -1;
      weights[i] = has ? args.weights[first + begin + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (places[i] < 0 || places[i] >= args.rows) continue;
      rows[i] = load<N>(static_cast<const T*>(args.y) + places[i] * args.size + column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (places[i] < 0 || places[i] >= args.rows) continue;
#pragma unroll
      for (int c = 0; c < N; ++c) sums[c] += weights[i] * to_float(rows[i].element[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < N; ++c) sums[c] += to_float(before.element[c]);
  store(out, narrow<T>(sums));
}

}  // namespace

void route_experts(const RouteArgs& args, void* stream) {
  if (args.topk.tokens == 0) return;
  if (args.dtype == DType::kBFloat16) {
    route<BFloat16>(args, stream);
  } else {
    route<Float16>(args, stream);
  }
  check_launch("route_experts");
}

void add_experts(const SumExpertsArgs& args, int64_t stride, void* stream) {
  if (args.tokens == 0 || args.size == 0) return;
  const char* const what = "add_experts";
  const int64_t bytes = element_size(args.dtype);
  const bool wide = multiples(
      kAccessBytes, {address(args.y), address(args.out), args.size * bytes, stride * bytes});
  visit_access(args.dtype, wide, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const dim3 grid(blocks(args.tokens, what),
                    side_blocks(ceil_div(args.size, kSumThreads * N), what));
    launch_overlapped<add_kernel<decltype(element), N>>(grid, dim3(kSumThreads), 0, stream, args,
                                                        stride);
  });
  check_launch(what);
}

}  // namespace rtp_llm::cuda
