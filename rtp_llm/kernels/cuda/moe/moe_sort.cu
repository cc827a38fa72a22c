// SPDX-License-Identifier: Apache-2.0
// Counting sort of entries by expert: chunks of neighbouring entries for each group of lanes, a row
// of counters for each chunk, so that the order within an expert stays. Many entries are divided
// among blocks, and a kernel before the sort counts what each block has of an expert.
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/moe/moe.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int64_t kSharedBytes = 48 << 10;  // that every device gives without being asked
constexpr int64_t kBlockEntries = 2048;     // worth a block of its own, and its row of counters
constexpr int64_t kMaxBlocks = 64;
constexpr int kCountThreads = 512;

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

// Bucket of this thread's entry at `i`; `experts` for an entry without an expert, -1 past the end.
__device__ inline int bucket_at(const SortByExpertArgs& args, int64_t i, int64_t end) {
  if (i >= end) return -1;
  const int32_t id = args.ids[i];
  return id >= 0 && id < args.experts ? id : args.experts;
}

// Sums of numbers of a block's threads: of those before this one, and of all.
struct Sums {
  int before, all;

  // Every thread of the block calls it.
  __device__ explicit Sums(int number) {
    __shared__ int of_groups[kMaxThreads / kGroup];
    const int lane = thread_index() % kGroup, group = thread_index() / kGroup;
    int sum = number;
    before = 0;
#pragma unroll
    for (int mask = 1; mask < kGroup; mask *= 2) {
      const int other = exchange(sum, mask);
      if (lane & mask) before += other;
      sum += other;
    }
    __syncthreads();  // earlier sums may still be read
    if (lane == 0) of_groups[group] = sum;
    __syncthreads();
    const int of_lane = lane < thread_count() / kGroup ? of_groups[lane] : 0;
    before += reduce_group(lane < group ? of_lane : 0, Sum());
    all = reduce_group(of_lane, Sum());
  }
};

// What a launch divides: `chunks` for each block, of `steps` entries for each lane, and the entries
// of every bucket that each block has, [blocks, buckets]; null for one block.
struct Division {
  const int32_t* of_blocks;
  int chunks;
  int64_t steps;

  __device__ int64_t block_entries() const { return chunks * steps * kGroup; }
};

// Entries of a bucket.
struct BucketCount {
  int total, before;  // of all blocks, and of those before this one
};

__device__ inline BucketCount count_bucket(const Division& division, const int* counts, int bucket,
                                           int buckets) {
  BucketCount count = {0, 0};
  if (division.of_blocks == nullptr) {
    for (int c = 0; c < division.chunks; ++c) count.total += counts[c * buckets + bucket];
    return count;
  }
  const int num_blocks = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
#pragma unroll 16
  for (int i = 0; i < num_blocks; ++i) {
    const int of_block = division.of_blocks[i * buckets + bucket];
    count.total += of_block;
    count.before += i < own ? of_block : 0;
  }
  return count;
}

// counts[c * buckets + b] -> first place of bucket b's entries of chunk c; writes the offsets. A
// thread for each bucket, in turn.
__device__ inline void places_of_chunks(const SortByExpertArgs& args, int* counts,
                                        const Division& division) {
  const int buckets = args.experts + 1;
  int begin = 0;  // of the buckets that are in turn
  for (int first = 0; first < buckets; first += thread_count()) {
    const int b = first + thread_index();
    const bool has = b < buckets;
    const BucketCount count = has ? count_bucket(division, counts, b, buckets) : BucketCount{0, 0};
    const Sums sums(count.total);
    int place = begin + sums.before;
    begin += sums.all;
    if (has && blockIdx.x == 0) args.offsets[b] = place;
    place += count.before;
    for (int c = 0; c < division.chunks && has; ++c) {
      const int count = counts[c * buckets + b];
      counts[c * buckets + b] = place;
      place += count;
    }
  }
  __syncthreads();
}

// of_blocks[block * buckets + b]: entries of bucket b that the block of the sort has.
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(SortByExpertArgs args, Division division, int32_t* of_blocks) {
  extern __shared__ int counts[];  // [buckets]
  const int buckets = args.experts + 1;
  const int64_t begin = blockIdx.x * division.block_entries();
  const int64_t end = min(begin + division.block_entries(), args.count);
  for (int i = thread_index(); i < buckets; i += kCountThreads) counts[i] = 0;
  __syncthreads();
  let_next_start();
  wait_for_previous();
  for (int64_t i = begin + thread_index(); i < end; i += kCountThreads) {
    atomicAdd(counts + bucket_at(args, i, end), 1);
  }
  __syncthreads();
  int32_t* const own = of_blocks + int64_t{blockIdx.x} * buckets;
  for (int i = thread_index(); i < buckets; i += kCountThreads) own[i] = counts[i];
}

// Groups of lanes beyond the `chunks` first have no entries, but buckets.
__global__ void __launch_bounds__(kMaxThreads)
    sort_kernel(SortByExpertArgs args, Division division) {
  extern __shared__ int counts[];  // [chunks, buckets]
  const int buckets = args.experts + 1, chunks = division.chunks;
  const int lane = thread_index() % kGroup;
  const int chunk = thread_index() / kGroup;
  const int64_t begin = blockIdx.x * division.block_entries() + chunk * division.steps * kGroup;
  const int64_t limit = chunk < chunks ? begin + division.steps * kGroup : begin;
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
  places_of_chunks(args, counts, division);
  for (int64_t i = begin + lane; i < limit; i += kGroup) {
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

int64_t blocks_for(const SortByExpertArgs& args) {
  return max(int64_t{1}, min(args.count / kBlockEntries, kMaxBlocks));
}

}  // namespace

int64_t sort_by_expert_scratch(const SortByExpertArgs& args) {
  const int64_t num_blocks = blocks_for(args);
  return num_blocks > 1 ? num_blocks * (args.experts + 1) * int64_t{sizeof(int32_t)} : 0;
}

RTP_LLM_OPERATOR(sort_by_expert, scratch)
void sort_by_expert(const SortByExpertArgs& args, void* memory, void* stream) {
  auto* const scratch = static_cast<int32_t*>(memory);
  const int64_t buckets = args.experts + 1, row_bytes = buckets * int64_t{sizeof(int)};
  const int64_t num_blocks = blocks_for(args), own = ceil_div(args.count, num_blocks);
  int chunks = kMaxThreads / kGroup;
  while (chunks * row_bytes > kSharedBytes || (chunks > 1 && (chunks / 2) * kGroup >= own)) {
    chunks /= 2;
  }
  Division division = {nullptr, chunks, ceil_div(own, int64_t{chunks} * kGroup)};
  const dim3 grid(static_cast<unsigned>(num_blocks));
  if (num_blocks > 1) {
    launch_overlapped<count_kernel>(grid, dim3(kCountThreads), static_cast<size_t>(row_bytes),
                                    stream, args, division, scratch);
    division.of_blocks = scratch;
  }
  const int64_t threads = max(int64_t{chunks} * kGroup, round_up(buckets, kGroup));
  launch_overlapped<sort_kernel>(grid,
                                 dim3(static_cast<unsigned>(min(threads, int64_t{kMaxThreads}))),
                                 static_cast<size_t>(chunks * row_bytes), stream, args, division);
  check_launch("sort_by_expert");
}

}  // namespace rtp_llm::cuda
