// SPDX-License-Identifier: Apache-2.0
// Sorting the entries of few tokens by expert, by one block.
#pragma once

#include "rtp_llm/kernels/cuda/moe/moe_few_select.h"

namespace rtp_llm::cuda {

constexpr int kOneBlockTokens = 16;  // of a block that selects and sorts
constexpr int kRouteThreads = kOneBlockTokens * kGroup;
constexpr int kBuckets = 2 * kRouteThreads;  // counted two to a thread

// The entries of each expert, counted by kRouteThreads threads.
struct Buckets {
  int counts[kBuckets];
  int totals[kRouteThreads / kGroup];

  __device__ void clear() {
    for (int i = thread_index(); i < kBuckets; i += kRouteThreads) counts[i] = 0;
  }
};

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
  for (int entry = thread_index(); entry < count; entry += kRouteThreads) {
    route.tiles[entry] = -1;
    if (ids[entry] != kElsewhere) atomicAdd(counts + ids[entry], 1);
  }
  __syncthreads();
  places_of_experts(route, buckets);
  for (int entry = thread_index(); entry < count; entry += kRouteThreads) {
    if (ids[entry] == kElsewhere) {
      args.places[entry] = -1;
    } else {
      slots[atomicAdd(counts + ids[entry], 1)] = entry;
    }
  }
  __syncthreads();
  const int here = counts[args.experts - 1];
  for (int slot = thread_index(); slot < here; slot += kRouteThreads) {
    const int entry = slots[slot], id = ids[entry];
    const int begin = id == 0 ? 0 : counts[id - 1], end = counts[id];  // now past its last
    int place = begin;
    for (int other = begin; other < end; ++other) place += slots[other] < entry ? 1 : 0;
    args.rows[place] = entry;
    args.places[entry] = place;
  }
}

}  // namespace rtp_llm::cuda
