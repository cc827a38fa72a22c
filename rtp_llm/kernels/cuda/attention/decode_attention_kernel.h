// SPDX-License-Identifier: Apache-2.0
// Decode attention: a block of threads attends with the query heads of one KV head of a sequence to
// a part of its keys; its warps take tiles of keys in turn. The parts of a sequence are merged by
// the block that ends last.
//
// Blocks start while the preceding kernel still runs. With args.early only the projection may be
// unfinished: lengths, tables and this layer's cache, except the new token's place, were complete
// before the first kernel of this step began, and no other kernel of the step writes them. So the
// first tile of keys and values is requested before the wait. (This requires a kernel launched
// without overlap between those writes and this one: a graph's first kernel always is, and so is a
// step's embedding.)
#pragma once

#include "rtp_llm/kernels/cuda/attention/decode_attention_heads.h"

namespace rtp_llm::cuda {

// As many warps as the registers of a multiprocessor hold: 128 a thread, or 255.
constexpr int decode_attention_warps(int d, int n) { return d / 64 * n <= 2 ? 16 : 8; }

// What this block of threads does for its sequence.
struct Share {
  KeyRange range;
  int position, slot;
  int parts;  // blocks that share the sequence and KV head; 0 = there is no new token
  bool is_last;

  __device__ Share(const DecodeAttentionArgs& args, int part, int splits, int least_tiles) {
    const int keys = args.seq_lens[blockIdx.y];
    position = args.positions[blockIdx.y];
    const bool is_known =
        args.cos_sin == nullptr || (position >= 0 && position < args.num_positions);
    slot = args.slots[blockIdx.y];
    range.first = args.window > 0 ? max(keys - args.window, 0) : 0;
    const int begin = range.first / kTileKeys;
    const int tiles = (keys + kTileKeys - 1) / kTileKeys - begin;
    const int tiles_of_part = max(least_tiles, (tiles + splits - 1) / splits);
    parts = keys > 0 && is_known && slot >= 0 && slot >> args.block_bits < args.num_blocks
                ? (tiles + tiles_of_part - 1) / tiles_of_part
                : 0;
    range.begin_tile = begin + part * tiles_of_part;
    range.end_tile = begin + min(tiles, (part + 1) * tiles_of_part);
    is_last = part == parts - 1;
    range.end = is_last ? keys : INT32_MAX;
  }
};

// What the warps of a block leave for each other: [warps][group] maxima and sums, then results of
// [warps][group][D].
struct Scratch {
  float* top;
  float* total;
  float* result;
  int warps, group;

  __device__ Scratch(float* memory, int warps, int group)
      : top(memory),
        total(memory + warps * group),
        result(memory + (2 * warps * group + 3) / 4 * 4),
        warps(warps),
        group(group) {}
};

template <class T, class C, int D, int N>
__device__ inline void leave(const Softmax<D, N>& softmax, const Scratch& scratch) {
  constexpr int kVector = Tile<T, C, D, N>::kValueVector;  // channels side by side in a lane
  const int warp = thread_index() / kGroup;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int q = n * kHeadsOfTile + 2 * lane_column() + column;
      if (q >= scratch.group) continue;
      const int place = warp * scratch.group + q;
      if (lane_row() == 0) {
        scratch.top[place] = softmax.top[n][column];
        scratch.total[place] = softmax.total[n][column];
      }
      float* const to = scratch.result + place * D + lane_row() * kVector;
#pragma unroll
      for (int step = 0; step < D / 16; step += 2) {
        const float (&first)[4] = softmax.result[n][step];
        const float (&second)[4] = softmax.result[n][step + 1];
        *reinterpret_cast<float4*>(to + step * 2 / kVector * 8 * kVector + step * 2 % kVector) = {
            first[column], first[column + 2], second[column], second[column + 2]};
      }
    }
  }
}

// Four channels of a query: a weighted sum that parts are added to.
struct Mean {
  float top, total;
  float sum[4];

  __device__ explicit Mean(float highest) : top(highest), total(0.0f), sum{} {
    if (top == -INFINITY) top = 0.0f;
  }

  __device__ void add(float part_top, float part_total, float4 part) {
    const float weight = power_of_two(part_top - top);
    total += weight * part_total;
    sum[0] += weight * part.x;
    sum[1] += weight * part.y;
    sum[2] += weight * part.z;
    sum[3] += weight * part.w;
  }

  template <class T>
  __device__ void write(T* to, float scale) const {
    const float factor = total == 0.0f ? 0.0f : __fdividef(scale, total);
    uint2 packed;
    packed.x = pack_pair<T>(sum[0] * factor, sum[1] * factor);
    packed.y = pack_pair<T>(sum[2] * factor, sum[3] * factor);
    *reinterpret_cast<uint2*>(to) = packed;
  }
};

// The four channels from `channel` of query `q` over all warps.
__device__ inline Mean mean_of_warps(const Scratch& scratch, int q, int channel, int d) {
  float highest = -INFINITY;
#pragma unroll 4
  for (int w = 0; w < scratch.warps; ++w) {
    highest = fmaxf(highest, scratch.top[w * scratch.group + q]);
  }
  Mean mean(highest);
#pragma unroll 4
  for (int w = 0; w < scratch.warps; ++w) {
    const int place = w * scratch.group + q;
    mean.add(scratch.top[place], scratch.total[place],
             *reinterpret_cast<const float4*>(scratch.result + place * d + channel));
  }
  return mean;
}

// Where parts of head `head` of this block's sequence lie in the workspace.
struct PartPlaces {
  float* results;
  float* stats;

  __device__ PartPlaces(const DecodeAttentionArgs& args, int head, int splits, int d) {
    const int64_t row = blockIdx.y * int64_t{args.num_heads} + head;
    results = args.parts + row * splits * d;
    stats = args.parts + args.num_seqs * args.num_heads * int64_t{splits} * d + row * splits * 2;
  }
};

// Whether all the other parts of this block's sequence and KV head are in memory. The counter is
// zero again for the next launch. The count releases what the block's threads wrote before the
// barrier, and acquires what others released.
__device__ inline bool ends_last(const DecodeAttentionArgs& args, int parts) {
  __shared__ bool is_last;
  __syncthreads();
  if (thread_index() == 0) {
    int32_t* const counter = args.counters + blockIdx.y * gridDim.x + blockIdx.x;
    int ended;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(ended)
                 : "l"(counter)
                 : "memory");
    is_last = ended == parts - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  return is_last;
}

template <class T, int D>
__device__ inline void merge_parts(const DecodeAttentionArgs& args, int parts, int splits,
                                   float scale) {
  const int group = args.num_heads / args.num_kv_heads;
  for (int i = thread_index(); i < group * D / 4; i += thread_count()) {
    const int head = static_cast<int>(blockIdx.x) * group + i / (D / 4);
    const int channel = i % (D / 4) * 4;
    const PartPlaces places(args, head, splits, D);
    float highest = -INFINITY;
#pragma unroll 4
    for (int p = 0; p < parts; ++p) highest = fmaxf(highest, __ldcg(places.stats + 2 * p));
    Mean mean(highest);
#pragma unroll 4
    for (int p = 0; p < parts; ++p) {
      const float2 stats = __ldcg(reinterpret_cast<const float2*>(places.stats) + p);
      mean.add(stats.x, stats.y,
               __ldcg(reinterpret_cast<const float4*>(places.results + p * D + channel)));
    }
    mean.write(
        static_cast<T*>(args.out) + (blockIdx.y * int64_t{args.num_heads} + head) * D + channel,
        scale);
  }
}

// The block's result: the output itself, or a part of it and, from who ends last, the merged one.
template <class T, int D>
__device__ inline void finish(const DecodeAttentionArgs& args, const Scratch& scratch,
                              const Share& share, int part, int splits) {
  const float scale = args.v_scale == nullptr ? 1.0f : *args.v_scale;
  for (int i = thread_index(); i < scratch.group * D / 4; i += thread_count()) {
    const int q = i / (D / 4);
    const int channel = i % (D / 4) * 4;
    const int head = static_cast<int>(blockIdx.x) * scratch.group + q;
    const Mean mean = mean_of_warps(scratch, q, channel, D);
    if (share.parts == 1) {
      mean.write(
          static_cast<T*>(args.out) + (blockIdx.y * int64_t{args.num_heads} + head) * D + channel,
          scale);
      continue;
    }
    const PartPlaces places(args, head, splits, D);
    *reinterpret_cast<float4*>(places.results + part * D + channel) = {mean.sum[0], mean.sum[1],
                                                                       mean.sum[2], mean.sum[3]};
    if (channel == 0) {
      *reinterpret_cast<float2*>(places.stats + 2 * part) = {mean.top, mean.total};
    }
  }
  if (share.parts > 1 && ends_last(args, share.parts)) {
    merge_parts<T, D>(args, share.parts, splits, scale);
  }
}

// A sequence without a new token: zeros, and nothing else is touched.
template <class T, int D>
__device__ inline void write_zeros(const DecodeAttentionArgs& args) {
  const int group = args.num_heads / args.num_kv_heads;
  T* const out =
      static_cast<T*>(args.out) + (blockIdx.y * int64_t{args.num_heads} + blockIdx.x * group) * D;
  for (int i = thread_index(); i < group * D; i += thread_count()) out[i] = T{0};
}

// A warp's walk through its tiles of keys: the tile it has requested, and the next one.
template <class T, class C, int D, int N>
struct Walk {
  Tile<T, C, D, N> now;
  TileBlocks next;
  const int32_t* table;
  const C *keys, *values;
  int tile, step;

  // Requests the first tile.
  __device__ Walk(const DecodeAttentionArgs& args, const KeyRange& range)
      : table(args.block_table + blockIdx.y * args.table_stride),
        keys(static_cast<const C*>(args.k_cache) + blockIdx.x * args.kv_head_stride),
        values(static_cast<const C*>(args.v_cache) + blockIdx.x * args.kv_head_stride),
        tile(range.begin_tile + thread_index() / kGroup),
        step(thread_count() / kGroup) {
    if (tile >= range.end_tile) return;
    const TilePlace place(args, range, tile, find_blocks(args, table, tile));
    now.load_keys(args, keys, place);
    now.load_values(args, values, place);
    next = find_blocks(args, table, tile + step);
  }

  // Keys and values are requested as soon as their registers are free.
  __device__ void attend(const DecodeAttentionArgs& args, const KeyRange& range,
                         const NewHeads<T, C, D, N>& heads, const ScoreScale& scale,
                         Softmax<D, N>& softmax) {
    while (tile < range.end_tile) {
      const TileBlocks after = find_blocks(args, table, tile + 2 * step);
      const bool has_next = tile + step < range.end_tile;
      float scores[N][4];
      if (range.has_new(tile)) now.take_key(range.new_row(), heads.key);
      now.score(&heads.queries[0][0], scores);
      const unsigned int seen = now.seen_rows;
      if (has_next) now.load_keys(args, keys, TilePlace(args, range, tile + step, next));
      softmax.weigh(scores, scale, seen);
      now.hide_values();
      if (range.has_new(tile)) now.take_value(range.new_row(), heads.value);
      now.add_values(scores, softmax.result);
      if (has_next) now.load_values(args, values, TilePlace(args, range, tile + step, next));
      next = after;
      tile += step;
    }
    softmax.gather();
  }
};

__device__ inline ScoreScale score_scale(const DecodeAttentionArgs& args) {
  constexpr float kLog2E = 1.44269504f;
  ScoreScale scale = {args.scale * kLog2E, 0.0f};
  if (args.soft_cap > 0.0f) scale = {args.scale / args.soft_cap, args.soft_cap * kLog2E};
  if (args.k_scale != nullptr) scale.factor *= *args.k_scale;
  return scale;
}

// Grid: KV heads, sequences, splits. Blocks end at once if the sequence is too short for their
// part; the first block never does, so that the kernel ends after the preceding one.
template <class T, class C, int D, int N>
__global__ void __launch_bounds__(kGroup* decode_attention_warps(D, N))
    decode_attention_kernel(const DecodeAttentionArgs args, int splits, int least_tiles) {
  using Heads = NewHeads<T, C, D, N>;
  extern __shared__ __align__(16) float memory[];
  __shared__ Heads heads;
  // Parts that only long sequences have start first, so that they end while there is room.
  const int part = splits - 1 - static_cast<int>(blockIdx.z);
  if (!args.early) wait_for_previous();
  if (part * least_tiles * kTileKeys >= args.seq_lens[blockIdx.y] && part > 0) return;
  const Share share(args, part, splits, least_tiles);
  if (part > 0 && part >= share.parts) return;
  let_next_start();
  if (share.parts == 0) {
    wait_for_previous();
    return write_zeros<T, D>(args);
  }
  Walk<T, C, D, N> walk(args, share.range);
  ChannelPair pairs[Heads::kPairs];
#pragma unroll
  for (int i = 0; i < Heads::kPairs; ++i) {
    pairs[i] = ChannelPair(args, thread_index() % kGroup + i * kGroup, share.position, T{});
  }
  const ScoreScale scale = score_scale(args);
  heads.clear(args);
  wait_for_previous();
  heads.prepare(args, pairs, share.is_last ? share.slot : -1);
  __syncthreads();
  Softmax<D, N> softmax;
  walk.attend(args, share.range, heads, scale, softmax);
  const Scratch scratch(memory, thread_count() / kGroup, args.num_heads / args.num_kv_heads);
  leave<T, C, D, N>(softmax, scratch);
  __syncthreads();
  finish<T, D>(args, scratch, share, part, splits);
}

}  // namespace rtp_llm::cuda
