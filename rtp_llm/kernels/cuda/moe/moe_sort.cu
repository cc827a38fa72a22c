// Counting sort of entries by expert in one block: chunks of neighbouring entries for each group of
// lanes, a row of counters for each chunk, so that the order within an expert stays.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int64_t kSharedBytes = 48 << 10;  // that every device gives without being asked

// Lets the lanes of a group see what others of it wrote to shared memory. Every lane calls it.
__device__ inline void sync_group() {
#if defined(__HIPCC__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// How many lanes of this group before this one have the same bucket, and how many in all.
struct Rank {
  int before;
  int all;
};

__device__ inline Rank rank_of(int bucket, int lane) {
#if defined(__HIPCC__)
  Rank rank = {0, 1};
#pragma unroll
  for (int mask = 1; mask < kGroup; ++mask) {
    if (exchange(bucket, mask) != bucket) continue;
    ++rank.all;
    if ((lane ^ mask) < lane) ++rank.before;
  }
  return rank;
#else
  const unsigned int same = __match_any_sync(0xffffffffU, bucket);
  return {__popc(same & ((1U << lane) - 1U)), __popc(same)};
#endif
}

// Buckets of this thread's entry at `i`; `experts` for an entry without one, -1 behind the end.
__device__ inline int bucket_at(const ExpertSortArgs& args, int64_t i, int64_t end) {
  if (i >= end) return -1;
  const int32_t id = args.ids[i];
  return id >= 0 && id < args.experts ? id : args.experts;
}

// totals[b], entries of each bucket -> its first place; writes the offsets. One group of lanes,
// each with some neighbouring buckets.
__device__ inline void first_places(const ExpertSortArgs& args, int* totals) {
  const int buckets = args.experts + 1;
  const int lane = thread_index();
  const int each = (buckets + kGroup - 1) / kGroup;
  const int begin = lane * each;
  const int end = begin + each < buckets ? begin + each : buckets;
  int mine = 0;
  for (int b = begin; b < end; ++b) mine += totals[b];
  int before = 0;
  int sum = mine;
#pragma unroll
  for (int mask = 1; mask < kGroup; mask *= 2) {
    const int other = exchange(sum, mask);
    if (lane & mask) before += other;
    sum += other;
  }
  for (int b = begin; b < end; ++b) {
    const int total = totals[b];
    totals[b] = before;
    args.offsets[b] = before;
    before += total;
  }
}

// counts[c * buckets + b] -> first place of bucket b's entries of chunk c; writes the offsets.
__device__ inline void places_of_chunks(const ExpertSortArgs& args, int* counts, int* totals,
                                        int chunks) {
  const int buckets = args.experts + 1;
  for (int b = thread_index(); b < buckets; b += thread_count()) {
    int sum = 0;
    for (int c = 0; c < chunks; ++c) {
      const int count = counts[c * buckets + b];
      counts[c * buckets + b] = sum;
      sum += count;
    }
    totals[b] = sum;
  }
  __syncthreads();
  if (thread_index() < kGroup) first_places(args, totals);
  __syncthreads();
  for (int i = thread_index(); i < chunks * buckets; i += thread_count()) {
    counts[i] += totals[i % buckets];
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kMaxThreads) sort_kernel(ExpertSortArgs args) {
  extern __shared__ int counts[];  // [chunks, buckets], then [buckets]
  const int buckets = args.experts + 1;
  const int chunks = thread_count() / kGroup;
  const int lane = thread_index() % kGroup;
  const int chunk = thread_index() / kGroup;
  const int64_t steps = (args.count + thread_count() - 1) / thread_count();
  const int64_t begin = chunk * steps * kGroup;
  const int64_t limit = begin + steps * kGroup;
  const int64_t end = limit < args.count ? limit : args.count;
  int* const mine = counts + chunk * buckets;
  for (int i = thread_index(); i < chunks * buckets; i += thread_count()) counts[i] = 0;
  __syncthreads();
  let_next_start();
  wait_for_previous();
  for (int64_t i = begin + lane; i < end; i += kGroup) {
    atomicAdd(mine + bucket_at(args, i, end), 1);
  }
  __syncthreads();
  places_of_chunks(args, counts, counts + chunks * buckets, chunks);
  for (int64_t i = begin + lane; i < begin + steps * kGroup; i += kGroup) {
    const int bucket = bucket_at(args, i, end);
    const Rank rank = rank_of(bucket, lane);
    const int first = bucket >= 0 ? mine[bucket] : 0;
    sync_group();
    if (bucket >= 0 && rank.before == 0) mine[bucket] = first + rank.all;
    sync_group();
    if (bucket < 0) continue;
    const int place = first + rank.before;
    args.rows[place] = static_cast<int32_t>(i);
    args.places[i] = bucket < args.experts ? place : -1;
  }
}

}  // namespace

void sort_by_expert(const ExpertSortArgs& args, void* stream) {
  const int64_t row_bytes = (args.experts + 1) * int64_t{sizeof(int)};
  int chunks = kMaxThreads / kGroup;
  while ((chunks + 1) * row_bytes > kSharedBytes ||
         (chunks > 1 && (chunks / 2) * kGroup >= args.count)) {
    chunks /= 2;
  }
  const auto bytes = static_cast<size_t>((chunks + 1) * row_bytes);
  launch_overlapped<sort_kernel>(dim3(1), dim3(static_cast<unsigned>(chunks * kGroup)), bytes,
                                 stream, args);
  check_launch("sort_by_expert");
}

}  // namespace rtp_llm::cuda
