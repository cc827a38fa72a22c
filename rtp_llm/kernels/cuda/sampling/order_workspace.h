// SPDX-License-Identifier: Apache-2.0
// What the threads of a block share about the order of a row.
#pragma once

#include "rtp_llm/kernels/cuda/sampling/row_bucketiser.h"
#include "rtp_llm/kernels/cuda/sampling/row_statistics.h"

namespace rtp_llm::cuda {

constexpr int kFew = 1024;         // tokens that are sorted
constexpr int kRanked = 256;       // of which so many are ranked one by one
constexpr int kMaxSegments = 128;  // of a block's slice; see row_draw.h

// Tokens and their mass.
struct Amount {
  Mass count, mass;

  __device__ Amount operator+(const Amount& other) const {
    return {count + other.count, mass + other.mass};
  }
};

// A token, and what comes before it in the row's order.
struct Place {
  Key key;
  Amount before;
};

enum class Measure { kCount, kMass };

__device__ inline Mass measured(const Amount& amount, Measure measure) {
  return measure == Measure::kMass ? amount.mass : amount.count;
}

// What the threads of a block share about a row.
struct Workspace {
  union {
    struct {
      uint32_t count[kBins], low[kBins], high[kBins];
    } bins;           // of this block's slice; a mass is in two words
    Mass mass[kFew];  // of the sorted tokens
  };
  Key mine[kFew];  // tokens of this block's slice that are to be sorted
  Key keys[kFew];  // the sorted ones
  int num_mine;
  int counts[kMaxClusterSize];  // each block's num_mine
  int entry;
  Amount before, own;
  Mass segments[kMaxSegments];
  Mass drawn[kMaxClusterSize];          // what is drawn from of each block's slice
  Amount groups[kMaxThreads / kGroup];  // of the threads of each group
  Amount totals[kMaxClusterSize];       // of each block's share of the bins
  Mass sums[2][kMaxClusterSize];
  Key extremes[2][kMaxClusterSize];
  RowStatistics block_statistics[kMaxClusterSize];
};

// A thread's share of entries: the first of them, the amount of all before it, and of its own.
struct EntryShare {
  int first;
  Amount ahead, own;
};

// Of entries with the amounts at(0), at(1), ...; leaves the amounts of groups in the workspace.
template <class At>
__device__ inline EntryShare share_entries(int entries, At at, Workspace& shared) {
  const int share = (entries + thread_count() - 1) / thread_count();
  const int first = thread_index() * share;
  const int group = thread_index() / kGroup;
  Amount own{0, 0};
  for (int i = first; i < first + share && i < entries; ++i) own = own + at(i);
  Amount ahead{0, 0};
  Amount of_group = own;
  for (int width = 1; width < kGroup; width *= 2) {
    const Amount other{exchange(of_group.count, width), exchange(of_group.mass, width)};
    if ((thread_index() & width) != 0) ahead = ahead + other;
    of_group = of_group + other;
  }
  if (thread_index() % kGroup == 0) shared.groups[group] = of_group;
  __syncthreads();  // and earlier results have been read
  for (int i = 0; i < group; ++i) ahead = ahead + shared.groups[i];
  return {first, ahead, own};
}

// The entry in which `target` lies, by the thread that has it; what is before it and its own
// amount. Every thread of the block finds them in the workspace.
template <class At>
__device__ inline void choose_entry(const EntryShare& share, At at, Measure measure, Mass target,
                                    Workspace& shared) {
  Amount ahead = share.ahead;
  if (target >= measured(ahead, measure) && target < measured(ahead + share.own, measure)) {
    int i = share.first;
    Amount found = at(i);
    while (target >= measured(ahead + found, measure)) {
      ahead = ahead + found;
      found = at(++i);
    }
    shared.entry = i;
    shared.before = ahead;
    shared.own = found;
  }
  __syncthreads();
}

// The entry in which `target` lies, of at most kBins.
template <class At>
__device__ inline void find_entry(int entries, At at, Measure measure, Mass target,
                                  Workspace& shared) {
  choose_entry(share_entries(entries, at, shared), at, measure, target, shared);
}

// The entry in which the mass target(mass of all) lies; returns the mass of all.
template <class At, class Target>
__device__ inline Mass find_entry_of_all(int entries, At at, Target target, Workspace& shared) {
  const EntryShare share = share_entries(entries, at, shared);
  Mass all = 0;
  for (int i = 0; i < thread_count() / kGroup; ++i) all += shared.groups[i].mass;
  choose_entry(share, at, Measure::kMass, target(all), shared);
  return all;
}

// A block's dynamic shared memory: its share of the bins, then its slice of the logits if it is
// kept.
struct RowMemory {
  Amount* parts;
  float* logits;

  __device__ explicit RowMemory(const Cluster& cluster) {
    extern __shared__ __align__(16) unsigned char bytes[];
    parts = reinterpret_cast<Amount*>(bytes);
    logits = reinterpret_cast<float*>(parts + kBins / cluster.size());
  }
};

}  // namespace rtp_llm::cuda
