// SPDX-License-Identifier: Apache-2.0
// What a block of mla_decode.cu works on, and how its latents come. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda {

constexpr int kLatent = 512;  // channels of a latent
constexpr int kRope = 64;     // channels of the rotated key after it
constexpr int kHeads = 64;    // heads of a block: rows of its products
constexpr int kKeys = 64;     // keys of a step
constexpr int kChunk = 64;    // channels in 128 bytes, a row of what the copy engine swizzles
constexpr int kChunks = (kLatent + kRope) / kChunk;
constexpr int kStages = 2;  // tiles of keys in flight
constexpr int kChunkBytes = kKeys * kChunk * 2;
constexpr int kTileBytes = kChunks * kChunkBytes;

struct MlaDecodeArgs : PagedAttentionArgs {
  int head_groups;  // blocks that share the keys of a sequence
  int splits;       // parts of the keys, a block each
  int page_rows;    // keys that one copy brings: a block's, or kKeys
  float* parts;     // [tokens, heads, splits, kLatent] sums; null: one part, written to out
  float* stats;     // [tokens, heads, splits, 2]: maximum of the scores (base 2), sum of weights
};

// A part of a sequence's keys, for kHeads of its heads.
struct MlaTile {
  int sequence, head_group, split;
  int token;     // row of q and out
  int num_keys;  // of the sequence
  int first;     // first key
  int steps;     // tiles of keys

  __device__ explicit MlaTile(const MlaDecodeArgs& args) {
    head_group = static_cast<int>(blockIdx.x);
    split = static_cast<int>(blockIdx.y);
    sequence = static_cast<int>(blockIdx.z);
    const int begin = args.cu_seqlens_q[sequence];
    const bool is_there = args.cu_seqlens_q[sequence + 1] > begin;
    // A sequence without a token takes one of the tokens past the last sequence.
    token = is_there ? begin : args.cu_seqlens_q[args.num_seqs] + sequence - begin;
    num_keys = is_there ? args.seq_lens[sequence] : 0;
    const int tiles = (num_keys + kKeys - 1) / kKeys;
    const int share = (tiles + args.splits - 1) / args.splits;
    first = split * share * kKeys;
    steps = max(0, min(share, tiles - split * share));
  }
};

// The tiles in shared memory and their barriers; a chunk is [rows, 64 channels].
struct MlaShared {
  static constexpr int kAlignment = 1024;  // of what is swizzled
  static constexpr int kWeightBytes = kHeads * kKeys * 2;
  static constexpr int kBytes = kAlignment + (1 + kStages) * kTileBytes + kWeightBytes;
  // Queries; each stage's chunks; each stage's halves of the latents and its keys.
  static constexpr int kBarriers = 1 + kStages * (kChunks + 3);

  uint8_t* start;
  uint32_t queries, keys, weights, barriers;
  unsigned int* missing;  // of each stage: the pages without a block, a bit each
  float* factors;         // [kHeads]: what is left of sums, at last what they are multiplied by

  __device__ MlaShared(uint8_t* memory, uint64_t* barrier_memory, unsigned int* missing_memory,
                       float* factor_memory)
      : missing(missing_memory), factors(factor_memory) {
    const uint32_t raw = hopper::shared_address(memory);
    queries = (raw + kAlignment - 1) / kAlignment * kAlignment;
    start = memory + (queries - raw);
    keys = queries + kTileBytes;
    weights = keys + kStages * kTileBytes;
    barriers = hopper::shared_address(barrier_memory);
  }

  __device__ uint32_t queries_full_barrier() const { return barriers; }
  __device__ uint32_t full_barrier(int stage, int chunk) const {
    return barriers + 8 * (1 + stage * kChunks + chunk);
  }
  // part 0 and 1: a half of the latents, 2: the rotated keys.
  __device__ uint32_t empty_barrier(int stage, int part) const {
    return barriers + 8 * (1 + kStages * kChunks + stage * 3 + part);
  }

  __device__ void init_barriers() const {
    constexpr int kReaders = hopper::kWarpgroup / kGroup;  // a warp each
    hopper::init_barrier(queries_full_barrier(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      for (int chunk = 0; chunk < kChunks; ++chunk)
        hopper::init_barrier(full_barrier(stage, chunk), 1);
      for (int part = 0; part < 3; ++part)
        hopper::init_barrier(empty_barrier(stage, part), kReaders);
    }
    hopper::publish_barriers();
  }
};

// One warp for each part of the tiles; its lanes take a chunk each.
class MlaLoader {
 public:
  __device__ MlaLoader(const MlaShared& shared, const MlaTile& tile, const MlaDecodeArgs& args)
      : shared_(shared), tile_(tile), args_(args) {
    part_ = thread_index() / kGroup;
    lane_ = thread_index() % kGroup;
    table_ = args.block_table + tile.sequence * args.table_stride;
  }

  __device__ void run(const CUtensorMap* queries, const CUtensorMap* keys) const {
    const int chunk = part_ * 4 + lane_;
    if (part_ > 2 || lane_ > 3 || chunk >= kChunks || tile_.steps == 0) return;
    if (part_ == 2) load_queries(queries);
    for (int step = 0; step < tile_.steps; ++step) {
      const int stage = step % kStages, phase = step / kStages & 1;
      const uint32_t full_barrier = shared_.full_barrier(stage, chunk);
      const uint32_t to = shared_.keys + stage * kTileBytes + chunk * kChunkBytes;
      hopper::wait(shared_.empty_barrier(stage, part_), phase ^ 1);
      if (part_ == 2) note_missing(step, stage);
      hopper::arrive_and_expect(full_barrier, kChunkBytes);
      for (int row = 0; row < kKeys; row += args_.page_rows) {
        hopper::tma_load(to + row * 128, keys, full_barrier, chunk * kChunk, 0,
                         place_of(step, row));
      }
    }
  }

 private:
  __device__ void load_queries(const CUtensorMap* queries) const {
    hopper::arrive_and_expect(shared_.queries_full_barrier(), kTileBytes);
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      hopper::tma_load(shared_.queries + chunk * kChunkBytes, queries,
                       shared_.queries_full_barrier(), chunk * kChunk, tile_.head_group * kHeads,
                       tile_.token);
    }
  }

  // Written before the rotated keys arrive: their barrier publishes it.
  __device__ void note_missing(int step, int stage) const {
    unsigned int missing = 0;
    for (int row = 0; row < kKeys; row += args_.page_rows) {
      const bool is_missing = place_of(step, row) < 0;
      missing |= static_cast<unsigned int>(is_missing) << row / args_.page_rows;
    }
    shared_.missing[stage] = missing;
  }

  // The row of the cache where a page begins; without a block, a row outside the cache, which reads
  // as zeros.
  __device__ int place_of(int step, int row) const {
    constexpr int kNowhere = -kKeys;
    const int key = tile_.first + step * kKeys + row;
    const int block = key / args_.block_size;
    if (key >= tile_.num_keys || block >= args_.table_width) return kNowhere;
    const int id = table_[block];
    const bool present = id >= 0 && id < args_.num_blocks;
    return present ? id * args_.block_size + key % args_.block_size : kNowhere;
  }

  const MlaShared& shared_;
  const MlaTile& tile_;
  const MlaDecodeArgs& args_;
  const int32_t* table_;
  int part_, lane_;
};

}  // namespace rtp_llm::cuda
