// What a block of prompt_attention.cu does: which rows it has, how their keys come, and the online
// softmax over them. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/arguments/attention.h"
#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda {

constexpr int kRows = 128;  // of a tile: tokens times the query heads of a KV head
constexpr int kKeys = 128;  // of a step
constexpr int kHalf = 64;   // channels in 128 bytes, a row of what the copy engine swizzles
constexpr int kStages = 2;  // tiles of keys in flight
constexpr float kLog2E = 1.4426950408889634F;

struct PromptArgs : PagedAttentionArgs {
  int group;        // query heads of a KV head
  int tile_tokens;  // tokens of a tile
  int page_rows;    // keys that one copy brings: a block's, or kKeys
  int tiles;        // of a KV head
  int neighbours;   // KV heads that are worked on at once, so that their keys stay in the L2 cache
};

// A tile: tokens [first_row, first_row + tile_tokens) of a sequence, for one KV head.
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
    const int end = args.causal ? min(num_keys, begin + rows) : num_keys;
    first_step = args.window > 0 ? max(0, begin - args.window + 1) / kKeys : 0;
    steps = max(0, (end + kKeys - 1) / kKeys - first_step);
  }

  // Sequence i owns the tiles from cu[i] / tile_tokens + i on: at least as many as it needs. Tokens
  // behind the last one count as one more, without keys.
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
    num_keys = inside ? args.seq_lens[sequence] : 0;
    first_row = (tile - (first_token / args.tile_tokens + sequence)) * args.tile_tokens;
  }

  // The first key of a step.
  __device__ int key_of(int step) const { return (first_step + steps - 1 - step) * kKeys; }
};

// The tiles in shared memory and their barriers. Each half of a tile is [rows, 64 channels].
template <int kHead>
struct SharedTiles {
  static constexpr int kHalves = kHead / kHalf;
  static constexpr int kHalfBytes = kKeys * kHalf * 2;
  static constexpr int kTileBytes = kHalves * kHalfBytes;
  static constexpr int kAlignment = 1024;  // of what is swizzled
  static constexpr int kBytes = kAlignment + (1 + 2 * kStages) * kTileBytes;
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
    keys = queries + kTileBytes;
    values = keys + kStages * kTileBytes;
    barriers = hopper::shared_address(barrier_memory);
  }

  __device__ uint32_t queries_came() const { return barriers; }
  __device__ uint32_t keys_came(int stage) const { return barriers + 8 * (1 + stage); }
  __device__ uint32_t keys_read(int stage) const { return keys_came(kStages + stage); }
  __device__ uint32_t values_came(int stage) const { return keys_came(2 * kStages + stage); }
  __device__ uint32_t values_read(int stage) const { return keys_came(3 * kStages + stage); }

  __device__ void init_barriers() const {
    constexpr int kReaders = 2 * hopper::kWarpgroup / kGroup;  // a warp each
    hopper::init_barrier(queries_came(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::init_barrier(keys_came(stage), 1);
      hopper::init_barrier(values_came(stage), 1);
      hopper::init_barrier(keys_read(stage), kReaders);
      hopper::init_barrier(values_read(stage), kReaders);
    }
    hopper::publish_barriers();
  }
};

// One warp: a lane for each page and half of a tile.
template <int kHead>
__device__ inline void load_tiles(const SharedTiles<kHead>& shared, const PromptTile& tile,
                                  const PromptArgs& args, const CUtensorMap* queries,
                                  const CUtensorMap* keys, const CUtensorMap* values) {
  using Tiles = SharedTiles<kHead>;
  if (tile.steps == 0) return;
  const int lane = thread_index();
  if (lane == 0) {
    const uint32_t barrier = shared.queries_came();
    hopper::arrive_and_expect(barrier, Tiles::kHalves * kHalf * 2 * args.group * args.tile_tokens);
    for (int half = 0; half < Tiles::kHalves; ++half) {
      hopper::copy_box(shared.queries + half * Tiles::kHalfBytes, queries, barrier, half * kHalf,
                       tile.kv_head * args.group, tile.first_token + tile.first_row);
    }
  }
  const int pages = kKeys / args.page_rows;
  const int page = lane % pages, half = lane / pages;
  const int place = half * Tiles::kHalfBytes + page * args.page_rows * kHalf * 2;
  const int32_t* const table = args.block_table + tile.sequence * args.table_stride;
  // The row of this lane's page in the cache; outside of it where there is none.
  const auto row_of = [&](int step) {
    const int key = tile.key_of(step) + page * args.page_rows;
    const int block = key / args.block_size;
    if (step >= tile.steps || key >= tile.num_keys || block >= args.table_width) return -kKeys;
    const int id = table[block];
    const bool present = id >= 0 && id < args.num_blocks;
    return present ? id * args.block_size + key % args.block_size : -kKeys;
  };
  const auto load = [&](uint32_t to, const CUtensorMap* from, uint32_t came, int row) {
    if (lane == 0) hopper::arrive_and_expect(came, Tiles::kTileBytes);
    __syncwarp();
    if (half < Tiles::kHalves) {
      hopper::copy_box(to + place, from, came, half * kHalf, tile.kv_head, row);
    }
  };
  int row = row_of(0);
  for (int step = 0; step < tile.steps; ++step) {
    const int next = row_of(step + 1);  // while the copies of this step are waited for
    const int stage = step % kStages, turn = step / kStages & 1;
    const int offset = stage * Tiles::kTileBytes;
    hopper::wait(shared.keys_read(stage), turn ^ 1);
    const unsigned int missing = __ballot_sync(~0U, row < 0 && half == 0);
    if (lane == 0) shared.missing[stage] = missing;
    load(shared.keys + offset, keys, shared.keys_came(stage), row);
    hopper::wait(shared.values_read(stage), turn ^ 1);
    load(shared.values + offset, values, shared.values_came(stage), row);
    row = next;
  }
}

// A warpgroup: 64 rows of the tile. A thread holds two of them, eight apart, and of each the
// elements 8 i + 2 (lane % 4) and the next.
template <class T, int kHead>
class Attender {
 public:
  __device__ Attender(const SharedTiles<kHead>& shared, const PromptTile& tile,
                      const PromptArgs& args)
      : shared_(shared), tile_(tile), args_(args) {
    warpgroup_ = thread_index() / hopper::kWarpgroup - 1;
    lane_ = thread_index() % kGroup;
    const int warp = thread_index() % hopper::kWarpgroup / kGroup;
    row_ = warpgroup_ * 64 + warp * 16 + lane_ / 4;
    for (int r = 0; r < 2; ++r) token_[r] = tile.first_row + (row_ + 8 * r) / args.group;
    const bool capped = args.soft_cap > 0;
    factor_ = capped ? kLog2E : args.scale * kLog2E;
    bend_ = capped ? 2 * kLog2E * args.scale / args.soft_cap : 0;
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) result_[i] = 0;
  }

  // All keys. The scores of a step are computed while those before it meet their values.
  __device__ void run() {
    if (tile_.steps == 0) return;
    hopper::wait(shared_.queries_came(), 0);
    hopper::wait(shared_.keys_came(0), 0);
    multiply_keys(0);
    hopper::wait_for_products<0>();
    hopper::pin(scores_);
    float keep[2];
    soften(0, keep);
    pack();
    hopper::wait(shared_.values_came(0), 0);
    clear_unused_values();
    for (int step = 1; step < tile_.steps; ++step) {
      const int stage = step % kStages, before = (step - 1) % kStages;
      hopper::wait(shared_.keys_came(stage), step / kStages & 1);
      multiply_keys(stage);
      if (step > 1) hopper::wait(shared_.values_came(before), (step - 1) / kStages & 1);
      multiply_values(before);
      hopper::wait_for_products<1>();
      hopper::pin(scores_);
      soften(step, keep);
      hopper::wait_for_products<0>();
      hopper::pin(result_);
      release(shared_.values_read(before));
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) result_[i] *= keep[i / 2 % 2];
      pack();
    }
    const int last = tile_.steps - 1;
    if (last > 0) hopper::wait(shared_.values_came(last % kStages), last / kStages & 1);
    multiply_values(last % kStages);
    hopper::wait_for_products<0>();
    hopper::pin(result_);
  }

  // Divided by the sums of the weights, to the result.
  __device__ void store() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = total_[r];
      total += exchange(total, 1);
      total += exchange(total, 2);
      const int row = row_ + 8 * r;
      if (row >= args_.tile_tokens * args_.group || token_[r] >= tile_.num_rows) continue;
      const int head = tile_.kv_head * args_.group + row % args_.group;
      if (args_.sinks != nullptr && top_[r] != -INFINITY) {
        total += hopper::power_of_two(args_.sinks[head] * kLog2E - top_[r] * factor_);
      }
      const float inverse = total == 0 ? 0 : 1 / total;
      const int64_t at = (tile_.first_token + token_[r]) * int64_t{args_.num_heads} + head;
      auto* const out = reinterpret_cast<uint32_t*>(static_cast<T*>(args_.out) + at * kHead);
#pragma unroll
      for (int i = 0; i < kHead / 8; ++i) {
        out[4 * i + lane_ % 4] = hopper::pair(result_[4 * i + 2 * r] * inverse,
                                              result_[4 * i + 2 * r + 1] * inverse, T{});
      }
    }
  }

 private:
  using Tiles = SharedTiles<kHead>;

  // scores_ = queries * keys, when waited for.
  __device__ void multiply_keys(int stage) {
    hopper::pin(scores_);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      const int inside = k / 4 * Tiles::kHalfBytes + k % 4 * 32;
      const uint32_t own_rows = shared_.queries + warpgroup_ * 64 * kHalf * 2;
      hopper::multiply(scores_, hopper::matrix(own_rows + inside, 16),
                       hopper::matrix(shared_.keys + stage * Tiles::kTileBytes + inside, 16), k > 0,
                       T{});
    }
    hopper::end_products();
  }

  // result_ += weights * values, when waited for.
  __device__ void multiply_values(int stage) {
    hopper::pin(result_);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t rows = shared_.values + stage * Tiles::kTileBytes + k * 16 * kHalf * 2;
      hopper::multiply(result_, weights_ + 4 * k, hopper::matrix(rows, Tiles::kHalfBytes), T{});
    }
    hopper::end_products();
  }

  // Slots behind the last key may hold anything, and nothing times NaN is NaN. Both warpgroups.
  __device__ void clear_unused_values() {
    constexpr int kBarrier = 1, kBoth = 2 * hopper::kWarpgroup, kPieces = kHead / 8;
    const int used = tile_.num_keys - tile_.key_of(0);
    if (used >= kKeys || used % args_.page_rows == 0) return;
    const int thread = thread_index() - hopper::kWarpgroup;
    for (int i = thread + used * kPieces; i < kKeys * kPieces; i += kBoth) {
      const int piece = i % kPieces, place = i / kPieces * 128 + piece % 8 * 16;
      auto* const at = shared_.start + (shared_.values - shared_.queries) +
                       piece / 8 * Tiles::kHalfBytes + place;
      *reinterpret_cast<uint4*>(at) = uint4{0, 0, 0, 0};
    }
    hopper::publish_stores();
    hopper::sync(kBarrier, kBoth);
  }

  // Scores of a step become weights; `keep` is what is left of the weights before them.
  __device__ void soften(int step, float (&keep)[2]) {
    if (args_.soft_cap > 0) cap();
    const unsigned int missing = shared_.missing[step % kStages];
    release(shared_.keys_read(step % kStages));
    if (missing != 0) hide_pages(missing);
    const int key = tile_.key_of(step), end = key + kKeys;
    const bool late = end > tile_.num_keys || (args_.causal && end > tile_.begin + 1);
    const bool early = args_.window > 0 && key < tile_.begin + args_.tile_tokens - args_.window;
    if (late || early) hide(key);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = top_[r];
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) top = fmaxf(top, score(r, i));
      top = fmaxf(top, exchange(top, 1));
      top = fmaxf(top, exchange(top, 2));
      // A row that has seen nothing yet has no maximum: its weights stay zero.
      const float base = top == -INFINITY ? 0 : top * factor_;
      keep[r] = hopper::power_of_two(top_[r] * factor_ - base);
      top_[r] = top;
      float total = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        score(r, i) = hopper::power_of_two(fmaf(score(r, i), factor_, -base));
        total += score(r, i);
      }
      total_[r] = total_[r] * keep[r] + total;
    }
  }

  __device__ void cap() {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const float small = hopper::power_of_two(-fabsf(scores_[i]) * bend_);
      scores_[i] = copysignf(args_.soft_cap * __fdividef(1 - small, 1 + small), scores_[i]);
    }
  }

  // Keys that a row does not see get no weight.
  __device__ void hide(int key) {
    const int own = key + lane_ % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = tile_.num_keys - tile_.num_rows + token_[r];
      const int end = (args_.causal ? min(tile_.num_keys, position + 1) : tile_.num_keys) - own;
      const int first = (args_.window > 0 ? position - args_.window + 1 : 0) - own;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const int column = i / 2 * 8 + i % 2;
        if (column >= end || column < first) score(r, i) = -INFINITY;
      }
    }
  }

  // Nor do keys that have no block.
  __device__ void hide_pages(unsigned int missing) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const int page = (i / 2 * 8 + i % 2 + lane_ % 4 * 2) / args_.page_rows;
      if (missing >> page & 1U) score(0, i) = score(1, i) = -INFINITY;
    }
  }

  // The weights in the type of the values, as the next product takes them.
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      weights_[i] = hopper::pair(scores_[2 * i], scores_[2 * i + 1], T{});
    }
  }

  // This warp has read the tile.
  __device__ void release(uint32_t barrier) {
    if (lane_ == 0) hopper::arrive(barrier);
  }

  __device__ float& score(int r, int i) { return scores_[i / 2 * 4 + r * 2 + i % 2]; }

  const SharedTiles<kHead>& shared_;
  const PromptTile& tile_;
  const PromptArgs& args_;
  int warpgroup_, lane_, row_;
  int token_[2];
  float factor_, bend_;
  float result_[kHead / 2];
  float scores_[kKeys / 2] = {};
  uint32_t weights_[kKeys / 4];
  float top_[2] = {-INFINITY, -INFINITY};  // of the scores, without the factor
  float total_[2] = {0, 0};                // of the weights that this thread holds
};

}  // namespace rtp_llm::cuda
