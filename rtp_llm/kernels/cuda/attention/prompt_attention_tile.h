// SPDX-License-Identifier: Apache-2.0
// What a block of prompt_attention.cu works on: its rows, and how their keys come. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda {

constexpr int kSlice = 64;  // channels in 128 bytes, a row of what the copy engine swizzles
constexpr int kStages = 2;  // tiles of keys in flight

// Warpgroups of 64 rows each; a row is a token and a query head of the tile's KV head. Three need
// registers that larger heads do not leave.
constexpr int warpgroups_of(int head, bool bias) { return head <= 64 && !bias ? 3 : 2; }
constexpr int rows_of_tile(int head, bool bias) { return 64 * warpgroups_of(head, bias); }

// Keys of a step: as many as fit twice, with their values, next to the queries in shared memory.
constexpr int keys_of_step(int head) { return head > 128 ? 64 : 128; }

struct PromptArgs : PagedAttentionArgs {
  int group;        // query heads of a KV head
  int tile_tokens;  // tokens of a tile
  int page_rows;    // keys that one copy brings: a block's, or all of a step
  int block_rows;   // rows of keys from one block to the next
  int tiles;        // of a KV head
  int neighbours;   // KV heads that are worked on at once, so that their keys stay in the L2 cache
};

// A tile: tokens [first_row, first_row + tile_tokens) of a sequence, for one KV head. kKeys: of a
// step.
template <int kKeys>
struct PromptTile {
  int sequence, kv_head;
  int first_token;  // of the sequence in the batch
  int num_rows;     // tokens of the sequence in the batch
  int first_row;    // of the tile, counted within them
  int num_keys;     // of the sequence
  int begin;        // position of the first row
  int first_step;   // the first tile of keys that a row sees
  int steps;        // how many tiles of keys there are; they are taken from the last one on

  // The long tiles of a causal prompt come first: the short ones fill the gaps at the end.
  __device__ explicit PromptTile(const PromptArgs& args) {
    const int per_section = args.tiles * args.neighbours;
    const int section = static_cast<int>(blockIdx.x) / per_section;
    const int rest = static_cast<int>(blockIdx.x) % per_section;
    const int left = args.num_kv_heads - section * args.neighbours;
    const int heads = left < args.neighbours ? left : args.neighbours;
    kv_head = section * args.neighbours + rest % heads;
    find(args, args.tiles - 1 - rest / heads);
    begin = num_keys - num_rows + first_row;
    const int rows = min(args.tile_tokens, num_rows - first_row);
    const int end = end_of(args, begin + rows - 1);
    first_step = args.window > 0 ? max(0, begin - args.window + 1) / kKeys : 0;
    steps = max(0, (end + kKeys - 1) / kKeys - first_step);
  }

  // Sequence i owns the tiles from cu[i] / tile_tokens + i on: at least as many as it needs. Tokens
  // past the last sequence count as one more sequence, without keys.
  __device__ void find(const PromptArgs& args, int tile) {
    const int num_seqs = static_cast<int>(args.num_seqs);
    int low = 0, high = num_seqs + 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (args.cu_seqlens_q[middle] / args.tile_tokens + middle <= tile) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    sequence = low - 1;
    first_token = args.cu_seqlens_q[sequence];
    const bool inside = sequence < num_seqs;
    num_rows = (inside ? args.cu_seqlens_q[sequence + 1] : static_cast<int>(args.num_tokens)) -
               first_token;
    num_keys = inside ? args.keys_of(sequence) : 0;
    first_row = (tile - (first_token / args.tile_tokens + sequence)) * args.tile_tokens;
  }

  // The end of the keys that a query at `position` sees.
  __device__ int end_of(const PromptArgs& args, int position) const {
    return args.window_right > 0 ? min(num_keys, position + args.window_right) : num_keys;
  }

  // The first key of a step.
  __device__ int key_of(int step) const { return (first_step + steps - 1 - step) * kKeys; }
};

// The tiles in shared memory and their barriers. Each slice of a tile is [rows, 64 channels].
template <int kHead, bool kBias>
struct SharedTiles {
  static constexpr int kWarpgroups = warpgroups_of(kHead, kBias);
  static constexpr int kKeys = keys_of_step(kHead);
  static constexpr int kSlices = kHead / kSlice;
  static constexpr int kSliceBytes = kKeys * kSlice * 2;
  static constexpr int kTileBytes = kSlices * kSliceBytes;
  static constexpr int kQuerySliceBytes = kWarpgroups * 64 * kSlice * 2;
  static constexpr int kQueryBytes = kSlices * kQuerySliceBytes;
  static constexpr int kAlignment = 1024;  // of what is swizzled
  static constexpr int kBytes = kAlignment + kQueryBytes + 2 * kStages * kTileBytes;
  static constexpr int kBarriers = 1 + 4 * kStages;

  uint8_t* start;
  uint32_t queries, keys, values;
  uint32_t barriers;
  unsigned int* missing;  // of each stage: the pages without a block, a bit each

  __device__ SharedTiles(uint8_t* memory, uint64_t* barrier_memory, unsigned int* missing_memory)
      : missing(missing_memory) {
    const uint32_t raw = hopper::shared_address(memory);
    queries = (raw + kAlignment - 1) / kAlignment * kAlignment;
    start = memory + (queries - raw);
    keys = queries + kQueryBytes;
    values = keys + kStages * kTileBytes;
    barriers = hopper::shared_address(barrier_memory);
  }

  __device__ uint32_t queries_full_barrier() const { return barriers; }
  __device__ uint32_t keys_full_barrier(int stage) const { return barriers + 8 * (1 + stage); }
  __device__ uint32_t keys_empty_barrier(int stage) const {
    return keys_full_barrier(kStages + stage);
  }
  __device__ uint32_t values_full_barrier(int stage) const {
    return keys_full_barrier(2 * kStages + stage);
  }
  __device__ uint32_t values_empty_barrier(int stage) const {
    return keys_full_barrier(3 * kStages + stage);
  }

  __device__ void init_barriers() const {
    constexpr int kReaders = kWarpgroups * hopper::kWarpgroup / kGroup;  // a warp each
    hopper::init_barrier(queries_full_barrier(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::init_barrier(keys_full_barrier(stage), 1);
      hopper::init_barrier(values_full_barrier(stage), 1);
      hopper::init_barrier(keys_empty_barrier(stage), kReaders);
      hopper::init_barrier(values_empty_barrier(stage), kReaders);
    }
    hopper::publish_barriers();
  }
};

// One warp: a lane for each page and slice of a tile.
template <int kHead, bool kBias>
class Loader {
 public:
  using Tiles = SharedTiles<kHead, kBias>;
  using Tile = PromptTile<Tiles::kKeys>;

  __device__ Loader(const Tiles& shared, const Tile& tile, const PromptArgs& args)
      : shared_(shared), tile_(tile), args_(args) {
    const int pages = Tiles::kKeys / args.page_rows;
    lane_ = thread_index();
    page_ = lane_ % pages;
    slice_ = lane_ / pages;
    place_ = slice_ * Tiles::kSliceBytes + page_ * args.page_rows * kSlice * 2;
    table_ = args.block_table + tile.sequence * args.table_stride;
  }

  // All tiles, each as soon as the one that lay in its place was read.
  __device__ void run(const CUtensorMap* queries, const CUtensorMap* keys,
                      const CUtensorMap* values) {
    if (tile_.steps == 0) return;
    if (lane_ == 0) load_queries(queries);
    int row = row_of(0);
    for (int step = 0; step < tile_.steps; ++step) {
      const int next = row_of(step + 1);  // while the copies of this step are waited for
      const int stage = step % kStages, phase = step / kStages & 1;
      const int offset = stage * Tiles::kTileBytes;
      hopper::wait(shared_.keys_empty_barrier(stage), phase ^ 1);
      const unsigned int missing = __ballot_sync(~0U, row < 0 && slice_ == 0);
      if (lane_ == 0) shared_.missing[stage] = missing;
      load(shared_.keys + offset, keys, shared_.keys_full_barrier(stage), row);
      hopper::wait(shared_.values_empty_barrier(stage), phase ^ 1);
      load(shared_.values + offset, values, shared_.values_full_barrier(stage), row);
      row = next;
    }
  }

 private:
  __device__ void load_queries(const CUtensorMap* queries) {
    const uint32_t full_barrier = shared_.queries_full_barrier();
    const int rows = args_.group * args_.tile_tokens;
    hopper::arrive_and_expect(full_barrier, Tiles::kSlices * kSlice * 2 * rows);
    for (int slice = 0; slice < Tiles::kSlices; ++slice) {
      hopper::tma_load(shared_.queries + slice * Tiles::kQuerySliceBytes, queries, full_barrier,
                       slice * kSlice, tile_.kv_head * args_.group,
                       tile_.first_token + tile_.first_row);
    }
  }

  // The row of this lane's page in the cache; outside of it, so that zeros come, where there is no
  // block.
  __device__ int row_of(int step) const {
    constexpr int kNowhere = -Tiles::kKeys;
    const int key = tile_.key_of(step) + page_ * args_.page_rows;
    const int block = key / args_.block_size;
    if (step >= tile_.steps || key >= tile_.num_keys || block >= args_.table_width) return kNowhere;
    const int id = table_[block];
    const bool present = id >= 0 && id < args_.num_blocks;
    return present ? id * args_.block_rows + key % args_.block_size : kNowhere;
  }

  __device__ void load(uint32_t to, const CUtensorMap* from, uint32_t full_barrier, int row) {
    if (lane_ == 0) hopper::arrive_and_expect(full_barrier, Tiles::kTileBytes);
    __syncwarp();
    if (slice_ < Tiles::kSlices) {
      hopper::tma_load(to + place_, from, full_barrier, slice_ * kSlice, tile_.kv_head, row);
    }
  }

  const Tiles& shared_;
  const Tile& tile_;
  const PromptArgs& args_;
  const int32_t* table_;
  int lane_, page_, slice_, place_;
};

}  // namespace rtp_llm::cuda
