// SPDX-License-Identifier: Apache-2.0
// The host side of decode attention: how work is cut, and the choice of a kernel.
#pragma once

#include "rtp_llm/kernels/cuda/attention/decode_attention_kernel.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {

// Warps of a block, how many blocks at most share a sequence and KV head, and how many tiles make
// a block worth while.
struct DecodeSchedule {
  int warps, splits, least_tiles;
};

// What warps leave for each other, in bytes; see Scratch.
constexpr int64_t decode_scratch_bytes(int64_t warps, int64_t group, int64_t d) {
  return 4 * (round_up(2 * warps * group, 4) + warps * group * d);
}

// Follows the number of sequences alone, so that a captured graph fits all lengths. Blocks that
// find no part for themselves cost about a microsecond a wave: there are few where sequences fill
// the GPU.
template <int D, int N>
inline DecodeSchedule decode_schedule(const DecodeAttentionArgs& args) {
  constexpr int64_t kMaxShared = 96 * 1024;
  const int64_t items = args.num_seqs * args.num_kv_heads;
  const int64_t group = args.num_heads / args.num_kv_heads;
  DecodeSchedule schedule = {4, 2, 64};
  if (items <= 256) schedule = {8, 4, 32};
  if (items <= 64) schedule = {16, 2, 16};
  while (items * schedule.splits <= 64 && schedule.splits < 32) schedule.splits *= 2;
  schedule.warps = min(schedule.warps, decode_attention_warps(D, N));
  while (decode_scratch_bytes(schedule.warps, group, D) > kMaxShared) schedule.warps /= 2;
  const int64_t tiles = ceil_div(args.table_width << args.block_bits, kTileKeys);
  const int64_t useful = ceil_div(tiles, schedule.least_tiles);
  if (useful < schedule.splits) schedule.splits = static_cast<int>(useful < 1 ? 1 : useful);
  return schedule;
}

// Throws for heads that no kernel is made for.
[[noreturn]] void refuse_heads(const DecodeAttentionArgs& args);

// Calls body(integral_constant<int, D>{}, integral_constant<int, N>{}): the head size, and tiles of
// eight query heads that share a KV head.
template <class Body>
inline void visit_heads(const DecodeAttentionArgs& args, Body&& body) {
  using std::integral_constant;
  const bool is_wide = args.num_heads / args.num_kv_heads > kHeadsOfTile;
  const auto with = [&](auto d) {
    if (is_wide) {
      body(d, integral_constant<int, 2>{});
    } else {
      body(d, integral_constant<int, 1>{});
    }
  };
  const int group = args.num_heads / args.num_kv_heads;
  if (group <= 2 * kHeadsOfTile && args.head_dim == 64) return with(integral_constant<int, 64>{});
  if (group <= 2 * kHeadsOfTile && args.head_dim == 128) return with(integral_constant<int, 128>{});
  if (!is_wide && args.head_dim == 256) {
    return body(integral_constant<int, 256>{}, integral_constant<int, 1>{});
  }
  refuse_heads(args);
}

// T and C as for Tile. Each pair is instantiated in a file of its own: they compile for a while.
template <class T, class C>
void launch_decode_attention(const DecodeAttentionArgs& args, void* stream) {
  visit_heads(args, [&](auto d, auto n) {
    constexpr int D = decltype(d)::value;
    constexpr int N = decltype(n)::value;
    constexpr auto kKernel = decode_attention_kernel<T, C, D, N>;
    constexpr int kMaxBytes = 96 * 1024;
    static const bool has_memory =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxBytes) ==
        cudaSuccess;
    static_cast<void>(has_memory);  // a refusal is found by check_launch
    const DecodeSchedule schedule = decode_schedule<D, N>(args);
    const dim3 grid(blocks(args.num_kv_heads, "decode_attention"),
                    side_blocks(args.num_seqs, "decode_attention"),
                    side_blocks(schedule.splits, "decode_attention"));
    const int64_t group = args.num_heads / args.num_kv_heads;
    launch_overlapped<kKernel>(grid, dim3(kGroup * schedule.warps),
                               decode_scratch_bytes(schedule.warps, group, D), stream, args,
                               schedule.splits, schedule.least_tiles);
    check_launch("decode_attention");
  });
}

extern template void launch_decode_attention<BFloat16, BFloat16>(const DecodeAttentionArgs&, void*);
extern template void launch_decode_attention<Float16, Float16>(const DecodeAttentionArgs&, void*);
extern template void launch_decode_attention<BFloat16, uint8_t>(const DecodeAttentionArgs&, void*);
extern template void launch_decode_attention<Float16, uint8_t>(const DecodeAttentionArgs&, void*);

}  // namespace rtp_llm::cuda
