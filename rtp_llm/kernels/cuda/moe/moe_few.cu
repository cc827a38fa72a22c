// SPDX-License-Identifier: Apache-2.0
// A warp selects the experts of a token, and one block sorts the entries by expert. Of very few
// tokens one block does both: there a launch more costs as much as the work of a block.
#include "rtp_llm/kernels/cuda/moe/moe_few.h"

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe_scores.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kOneBlockTokens = 16;
constexpr int kThreads = kOneBlockTokens * kGroup;
constexpr int kEntries = kOneBlockTokens * (kRoutedExperts + 1);
constexpr int kBuckets = 2 * kThreads;  // counted two to a thread
constexpr int kBlockTokens = 4;         // of a block that only selects
constexpr int kElsewhere = -1;          // an entry's expert that is not here

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

// The entries of each expert, counted by kThreads threads.
struct Buckets {
  int counts[kBuckets];
  int totals[kThreads / kGroup];

  __device__ void clear() {
    for (int i = thread_index(); i < kBuckets; i += kThreads) counts[i] = 0;
  }
};

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

// An expert's entries, and its tiles above them.
__device__ inline int entries_and_tiles(int entries) {
  return entries | (entries + kTileEntries - 1) / kTileEntries << 16;
}

// The tiles of an expert, `begin` and `entries` of its; `before`: tiles of those before it.
__device__ inline void put_tiles(const RouteArgs& args, int expert, int begin, int entries,
                                 int before) {
  if (args.gate != nullptr) {
    const int of_shared = (static_cast<int>(args.topk.tokens) + kTileEntries - 1) / kTileEntries;
    before = expert == args.sort.experts - 1 ? 0 : before + of_shared;
  }
  for (int i = 0; i < entries; i += kTileEntries) {
    args.tiles[before + i / kTileEntries] = expert << 16 | (begin + i);
  }
}

// counts -> the first place of each expert, by the whole block; writes the offsets and the tiles,
// which are -1 before.
__device__ inline void places_of_experts(const RouteArgs& route, Buckets& buckets) {
  const SortByExpertArgs& args = route.sort;
  const int lane = thread_index() % kGroup, warp = thread_index() / kGroup;
  const int bucket = 2 * thread_index();
  const int entries[2] = {buckets.counts[bucket], buckets.counts[bucket + 1]};
  const int first = entries_and_tiles(entries[0]), both = first + entries_and_tiles(entries[1]);
  int before = both;
#pragma unroll
  for (int step = 1; step < kGroup; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, before, step);
    if (lane >= step) before += other;
  }
  if (lane == kGroup - 1) buckets.totals[warp] = before;
  __syncthreads();
  before += reduce_group(lane < warp ? buckets.totals[lane] : 0, Sum()) - both;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int begin = before & 0xffff;
    buckets.counts[bucket + i] = begin;
    if (bucket + i < args.experts) args.offsets[bucket + i] = begin;
    put_tiles(route, bucket + i, begin, entries[i], before >> 16);
    before += entries_and_tiles(entries[i]);
  }
  if (bucket == kBuckets - 2) args.offsets[args.experts] = before & 0xffff;  // all that are here
  __syncthreads();
}

// The entries of `ids` by expert, and in their order within one, by the whole block: each takes a
// slot of its expert's as it comes, then the place that is its rank among the entries in them.
// `buckets` is clear; `slots` has room for all entries.
__device__ inline void sort(const RouteArgs& route, const int* ids, int* slots, Buckets& buckets) {
  const SortByExpertArgs& args = route.sort;
  const int count = static_cast<int>(args.count);
  int* const counts = buckets.counts;
  for (int entry = thread_index(); entry < count; entry += kThreads) {
    route.tiles[entry] = -1;
    if (ids[entry] != kElsewhere) atomicAdd(counts + ids[entry], 1);
  }
  __syncthreads();
  places_of_experts(route, buckets);
  for (int entry = thread_index(); entry < count; entry += kThreads) {
    if (ids[entry] == kElsewhere) {
      args.places[entry] = -1;
    } else {
      slots[atomicAdd(counts + ids[entry], 1)] = entry;
    }
  }
  __syncthreads();
  const int here = counts[args.experts - 1];
  for (int slot = thread_index(); slot < here; slot += kThreads) {
    const int entry = slots[slot], id = ids[entry];
    const int begin = id == 0 ? 0 : counts[id - 1], end = counts[id];  // now past its last
    int place = begin;
    for (int other = begin; other < end; ++other) place += slots[other] < entry ? 1 : 0;
    args.rows[place] = entry;
    args.places[entry] = place;
  }
}

// Of at most kOneBlockTokens tokens.
template <class T, int kScores>
__global__ void __launch_bounds__(kThreads, 1) route_kernel(RouteArgs args) {
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

__global__ void __launch_bounds__(kThreads, 1) order_kernel(RouteArgs args) {
  __shared__ Buckets buckets;
  extern __shared__ int entries[];  // ids, then slots
  const int count = static_cast<int>(args.sort.count);
  buckets.clear();
  let_next_start();
  wait_for_previous();
  for (int i = thread_index(); i < count; i += kThreads) entries[i] = args.ids[i];
  __syncthreads();
  sort(args, entries, entries + count, buckets);
}

template <class T, int kScores>
void launch(const RouteArgs& args, void* stream) {
  const int64_t open_bytes = args.topk.k * kScores * int64_t{sizeof(uint64_t)};  // of a token
  if (args.topk.tokens <= kOneBlockTokens) {
    constexpr auto kKernel = route_kernel<T, kScores>;
    const int64_t bytes = args.topk.tokens * open_bytes;
    allow_shared<kKernel>(bytes, "route_experts");
    launch_overlapped<kKernel>(dim3(1), dim3(kThreads), static_cast<size_t>(bytes), stream, args);
    return;
  }
  const dim3 grid(blocks(ceil_div(args.topk.tokens, kBlockTokens), "route_experts"));
  launch_overlapped<select_kernel<T, kScores>>(grid, dim3(2 * kBlockTokens * kGroup),
                                               static_cast<size_t>(kBlockTokens * open_bytes),
                                               stream, args);
  launch_overlapped<order_kernel>(dim3(1), dim3(kThreads),
                                  static_cast<size_t>(2 * args.sort.count) * sizeof(int), stream,
                                  args);
}

template <class T>
void pick_scores(const RouteArgs& args, void* stream) {
  if (args.topk.experts <= 4 * kGroup) return launch<T, 4>(args, stream);
  if (args.topk.experts <= 16 * kGroup) return launch<T, 16>(args, stream);
  launch<T, 32>(args, stream);
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
    pick_scores<BFloat16>(args, stream);
  } else {
    pick_scores<Float16>(args, stream);
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
