// SPDX-License-Identifier: Apache-2.0
// The gated delta rule, token by token: a group of 8 lanes has some rows of S in registers from the
// one time that they are read, brings them up to date from the ring and multiplies them with key
// and query of each new token. Blocks of threads share nothing: a tile of S has its own count of
// folded tokens, and what they write to a ring lies at positions of this chunk, which none of them
// reads (the ring has room for what is folded and for a chunk).
#pragma once

#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/linear_attention/delta_tile.h"

namespace rtp_llm::cuda {

// Grid: tiles of S, sequences; the last one stands for rows of no sequence.
template <class T, class State, int kUnits, int kRows, int kSize>
__global__ void __launch_bounds__(kThreads, kSize > 0 ? (kRows == 4 ? 3 : 4) : 1)
    advance_states(GatedDeltaRuleArgs args, int tiles) {
  using Tile = StateTile<State, kUnits, kRows, kSize>;
  constexpr int kPacks = Tile::kColumns / kPack;
  extern __shared__ __align__(16) float memory[];
  wait_for_previous();
  let_next_start();
  const TilePlace place(args, Tile::kTileRows, tiles);
  if (blockIdx.y == args.sequences.num_seqs) return write_zeros<T>(args, place);
  const Chunk chunk(args, static_cast<int>(blockIdx.y));
  if (chunk.count <= 0 || chunk.count > args.sequences.max_seqlen_q) return;
  const Shared shared(memory, args, Tile::kTileRows);
  Tile tile(args, place);
  if (chunk.has_read) tile.read(chunk.read);
  const int folded = chunk.has_read ? *place.folded(args, chunk.read) : chunk.start;
  stage_tokens<T, kPacks, Tile::kTileRows, kSize>(args, place, chunk, 0, shared);
  const Ring ring(args, chunk, folded);
  tile.template replay<T>(place, ring, chunk.read, shared);
  const bool folds = chunk.has_write && !chunk.stays(args, ring.count);
  if (folds && chunk.is_short) {
    tile.write(chunk.write);
    place.write_folded(args, chunk.write, chunk.start);
  }
  for (int first = 0; first < chunk.count; first += kStaged) {
    if (first > 0) {
      __syncthreads();  // what was staged before is read no more
      stage_tokens<T, kPacks, Tile::kTileRows, kSize>(args, place, chunk, first, shared);
      __syncthreads();
    }
    tile.template advance<T>(place, chunk, first, shared);
  }
  if (folds && !chunk.is_short) {
    tile.write(chunk.write);
    place.write_folded(args, chunk.write, chunk.end);
  }
}

template <class T, class State, int kUnits, int kRows, int kSize>
void launch_advance(const GatedDeltaRuleArgs& args, void* stream) {
  constexpr int kTileRows = kGroups * kRows;
  const int64_t tiles = ceil_div(args.value_size, kTileRows);
  const dim3 grid(blocks(tiles * args.heads, "gated_delta_rule"),
                  side_blocks(args.sequences.num_seqs + 1, "gated_delta_rule"));
  const int64_t bytes = Shared::numbers(args, kTileRows) * int64_t{sizeof(float)};
#if !defined(__HIPCC__)
  allow_shared<advance_states<T, State, kUnits, kRows, kSize>>(bytes, "gated_delta_rule");
#endif
  launch_overlapped<advance_states<T, State, kUnits, kRows, kSize>>(
      grid, kThreads, static_cast<size_t>(bytes), stream, args, static_cast<int>(tiles));
}

// Larger tiles share keys and rings between more rows, once there are enough of them.
constexpr int64_t kManyTiles = 1024;

// Each pair of types is instantiated in the file of its T: they compile for a while.
template <class T, class State>
void launch_delta_rule(const GatedDeltaRuleArgs& args, void* stream) {
  constexpr int kOfUnit = kLanes * kAccessBytes / int{sizeof(State)};
  constexpr int kUnits = 128 / kOfUnit;
  const bool aligned =
      multiples(kAccessBytes, {address(args.qkv), args.qkv_stride * int64_t{sizeof(T)}});
  const int64_t tiles = args.sequences.num_seqs * args.heads * ceil_div(args.value_size, 64);
  if (args.key_size > 128) {
    launch_advance<T, State, 512 / kOfUnit, 1, 0>(args, stream);
  } else if (args.key_size < 128 || args.value_size % 64 != 0 || !aligned) {
    launch_advance<T, State, kUnits, 2, 0>(args, stream);
  } else if (tiles < kManyTiles) {
    launch_advance<T, State, kUnits, 2, 128>(args, stream);
  } else {
    launch_advance<T, State, kUnits, 4, 128>(args, stream);
  }
}

extern template void launch_delta_rule<float, float>(const GatedDeltaRuleArgs&, void*);
extern template void launch_delta_rule<float, BFloat16>(const GatedDeltaRuleArgs&, void*);
extern template void launch_delta_rule<BFloat16, float>(const GatedDeltaRuleArgs&, void*);
extern template void launch_delta_rule<BFloat16, BFloat16>(const GatedDeltaRuleArgs&, void*);
extern template void launch_delta_rule<Float16, float>(const GatedDeltaRuleArgs&, void*);
extern template void launch_delta_rule<Float16, BFloat16>(const GatedDeltaRuleArgs&, void*);

}  // namespace rtp_llm::cuda
