// SPDX-License-Identifier: Apache-2.0
// The selection of a token's experts by a warp, the kernel that only selects, and its launch.
#pragma once

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe_few.h"
#include "rtp_llm/kernels/cuda/moe/moe_scores.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {

constexpr int kBlockTokens = 4;  // of a block that only selects
constexpr int kElsewhere = -1;   // an entry's expert that is not here

// A score with the expert that has it, in the order of selection: the lowest id among equals.
__device__ inline uint64_t ranked(uint32_t key, int id) {
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline int id_of(uint64_t rank) {
  return static_cast<int>(~static_cast<uint32_t>(rank));
}

// Scores of a softmax are not negative: one that looks so was no number.
__device__ inline float score_of(uint64_t rank) {
  const auto key = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float(key >> 31 ? key & 0x7fffffffU : 0x7fc00000U);
}

// The k-th highest of the highest ranks of all lanes: none of the k best is below it. 0 when fewer
// lanes have an expert.
__device__ inline uint64_t bound_of(uint64_t highest_of_lane, int k) {
  int above = 0;
#pragma unroll 16
  for (int lane = 0; lane < kGroup; ++lane) {
    above += __shfl_sync(0xffffffffU, highest_of_lane, lane) > highest_of_lane ? 1 : 0;
  }
  const unsigned int last = __ballot_sync(0xffffffffU, above == k - 1 && highest_of_lane != 0);
  const uint64_t bound = __shfl_sync(0xffffffffU, highest_of_lane, last == 0 ? 0 : __ffs(last) - 1);
  return last == 0 ? 1 : bound;
}

// The k best ranks of a token in order, by one warp. `open` has room for k of each lane.
template <int N>
__device__ inline void take_best(const TopkArgs& args, const float (&scores)[N], int lane,
                                 uint64_t* open, uint64_t* best) {
  uint64_t ranks[N], most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane + i * kGroup;
    ranks[i] = e < args.experts ? ranked(key_of(ordered(scores[i])), e) : 0;
    most = ranks[i] > most ? ranks[i] : most;
  }
  const uint64_t bound = bound_of(most, args.k);
  int count = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool stays = ranks[i] >= bound;
    const unsigned int lanes = __ballot_sync(0xffffffffU, stays);
    if (stays) open[count + __popc(lanes & ((1U << lane) - 1U))] = ranks[i];
    count += __popc(lanes);
  }
  __syncwarp();
  for (int i = lane; i < count; i += kGroup) {
    const uint64_t mine = open[i];
    int above = 0;
    for (int j = 0; j < count; ++j) above += open[j] > mine ? 1 : 0;
    if (above < args.k) best[above] = mine;
  }
  __syncwarp();
}

// Where an expert is sorted.
__device__ inline int place_of(const RouteArgs& args, int expert) {
  const int here = args.sort.experts - (args.gate == nullptr ? 0 : 1), place = expert - args.first;
  return place >= 0 && place < here ? place : kElsewhere;
}

// The experts of a token to `ids`, which has those of all tokens, by one warp. `open` has room for
// k of each lane, `best` for k.
template <int N>
__device__ inline void select(const RouteArgs& args, int64_t token, int lane, uint64_t* open,
                              uint64_t* best, int* ids) {
  const TopkArgs& topk = args.topk;
  float scores[N];
  score<N>(topk, token, lane, scores);
  take_best<N>(topk, scores, lane, open, best);
  const bool has = lane < topk.k;
  const float weight = has ? score_of(best[lane]) : 0.0f;
  const float sum = reduce_group(weight, Sum());
  if (!has) return;
  const int64_t at = token * (topk.k + (args.gate == nullptr ? 0 : 1)) + lane;
  ids[at] = place_of(args, id_of(best[lane]));
  topk.weights[at] = topk.renormalize && sum > 0.0f ? weight / sum : weight;
}

// Columns of the gate that a lane asks for at once; the first before the kernel in front has ended.
template <class T>
struct Gate {
  static constexpr int kAhead = 4;
  static constexpr int N = kAccessBytes / sizeof(T);

  Pack<T, N> columns[kAhead];

  __device__ static int64_t column(int i, int lane) { return (int64_t{i} * kGroup + lane) * N; }

  __device__ void ask(const RouteArgs& args, int64_t first, int lane) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = first + column(i, lane);
      if (at < args.hidden) columns[i] = load<N>(static_cast<const T*>(args.gate) + at);
    }
  }

  __device__ float product(const RouteArgs& args, int64_t token, int64_t first, int lane) const {
    const T* const x = static_cast<const T*>(args.x) + token * args.hidden;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = first + column(i, lane);
      if (at >= args.hidden) continue;
      const Pack<T, N> pack = load<N>(x + at);
#pragma unroll
      for (int c = 0; c < N; ++c)
        sum += to_float(pack.element[c]) * to_float(columns[i].element[c]);
    }
    return sum;
  }
};

// The shared expert as the last of a token, by one warp.
template <class T>
__device__ inline void weigh_shared(const RouteArgs& args, int64_t token, int lane, Gate<T>& gate,
                                    int* ids) {
  constexpr int64_t kStep = int64_t{Gate<T>::kAhead} * kGroup * Gate<T>::N;
  float sum = 0.0f;
  for (int64_t first = 0; first < args.hidden; first += kStep) {
    if (first > 0) gate.ask(args, first, lane);
    sum += gate.product(args, token, first, lane);
  }
  sum = reduce_group(sum, Sum());
  if (lane != 0) return;
  const int64_t at = token * (args.topk.k + 1) + args.topk.k;
  ids[at] = args.sort.experts - 1;
  args.topk.weights[at] = 1.0f / (1.0f + expf(-sum));
}

// A warp for each token's selection, and one for its shared expert.
template <class T, int kScores>
__global__ void __launch_bounds__(2 * kBlockTokens * kGroup) select_kernel(RouteArgs args) {
  __shared__ uint64_t best[kBlockTokens][kRoutedExperts];
  extern __shared__ uint64_t open[];
  const int lane = thread_index() % kGroup, warp = thread_index() / kGroup;
  const int row = warp % kBlockTokens;
  const int64_t token = int64_t{blockIdx.x} * kBlockTokens + row;
  const bool selects = warp < kBlockTokens, there = token < args.topk.tokens;
  const bool weighs = args.gate != nullptr && !selects && there;
  Gate<T> gate;
  if (weighs) gate.ask(args, 0, lane);
  let_next_start();
  wait_for_previous();
  if (selects && there) {
    select<kScores>(args, token, lane, open + row * args.topk.k * kScores, best[row], args.ids);
  }
  if (weighs) weigh_shared(args, token, lane, gate, args.ids);
}

// Calls body(integral_constant<int, a lane's scores>{}).
template <class Body>
void visit_scores(int experts, Body&& body) {
  if (experts <= 4 * kGroup) return body(std::integral_constant<int, 4>{});
  if (experts <= 16 * kGroup) return body(std::integral_constant<int, 16>{});
  body(std::integral_constant<int, 32>{});
}

// Bytes of shared memory for `open` of so many tokens.
inline int64_t open_bytes(const TopkArgs& args, int64_t tokens, int scores) {
  return tokens * args.k * scores * int64_t{sizeof(uint64_t)};
}

// Each T is instantiated in a file of its own: one takes about 5 seconds to compile.
template <class T>
void select_experts(const RouteArgs& args, void* stream) {
  const dim3 grid(blocks(ceil_div(args.topk.tokens, kBlockTokens), "route_experts"));
  visit_scores(args.topk.experts, [&](auto scores) {
    constexpr int kScores = decltype(scores)::value;
    const auto bytes = static_cast<size_t>(open_bytes(args.topk, kBlockTokens, kScores));
    launch_overlapped<select_kernel<T, kScores>>(grid, dim3(2 * kBlockTokens * kGroup), bytes,
                                                 stream, args);
  });
}

extern template void select_experts<BFloat16>(const RouteArgs&, void*);
extern template void select_experts<Float16>(const RouteArgs&, void*);

}  // namespace rtp_llm::cuda
