// SPDX-License-Identifier: Apache-2.0
// The kernel that selects and sorts in one block, and its launch.
#pragma once

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe_few_select.h"
#include "rtp_llm/kernels/cuda/moe/moe_few_sort.h"

namespace rtp_llm::cuda {

constexpr int kEntries = kOneBlockTokens * (kRoutedExperts + 1);

// Of at most kOneBlockTokens tokens.
template <class T, int kScores>
__global__ void __launch_bounds__(kRouteThreads, 1) route_kernel(RouteArgs args) {
  __shared__ Buckets buckets;
  __shared__ int ids[kEntries], slots[kEntries];
  __shared__ uint64_t best[kOneBlockTokens][kRoutedExperts];
  extern __shared__ uint64_t open[];
  const int lane = thread_index() % kGroup, warp = thread_index() / kGroup;
  // The warps that select nothing have the gate, where these are as many as the tokens.
  const int tokens = static_cast<int>(args.topk.tokens);
  const int first = 2 * tokens <= kOneBlockTokens ? kOneBlockTokens / 2 : 0;
  const bool weighs = args.gate != nullptr && warp >= first && warp < first + tokens;
  Gate<T> gate;
  if (weighs) gate.ask(args, 0, lane);
  buckets.clear();
  let_next_start();
  wait_for_previous();
  if (warp < tokens) {
    select<kScores>(args, warp, lane, open + warp * args.topk.k * kScores, best[warp], ids);
  }
  if (weighs) weigh_shared(args, warp - first, lane, gate, ids);
  __syncthreads();
  sort(args, ids, slots, buckets);
}

// Each T is instantiated in a file of its own: one takes about 5 seconds to compile.
template <class T>
void route_in_one_block(const RouteArgs& args, void* stream) {
  visit_scores(args.topk.experts, [&](auto scores) {
    constexpr int kScores = decltype(scores)::value;
    constexpr auto kKernel = route_kernel<T, kScores>;
    const int64_t bytes = open_bytes(args.topk, args.topk.tokens, kScores);
    allow_shared<kKernel>(bytes, "route_experts");
    launch_overlapped<kKernel>(dim3(1), dim3(kRouteThreads), static_cast<size_t>(bytes), stream,
                               args);
  });
}

extern template void route_in_one_block<BFloat16>(const RouteArgs&, void*);
extern template void route_in_one_block<Float16>(const RouteArgs&, void*);

}  // namespace rtp_llm::cuda
