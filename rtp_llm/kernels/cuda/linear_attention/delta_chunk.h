// SPDX-License-Identifier: Apache-2.0
// What a block of threads of the gated delta rule works on: rows of S, new tokens, the ring.
#pragma once

#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

constexpr int kThreads = 128;
constexpr int kLanes = 8;                   // of a row of S
constexpr int kGroups = kThreads / kLanes;  // rows side by side
constexpr int kFoldRows = 8;                // of S, with one count of folded tokens

__device__ inline int lane_of_row() { return thread_index() % kLanes; }
__device__ inline int group_of_row() { return thread_index() / kLanes; }

// Which rows of S: [row, row + rows) of value head `head`.
struct TilePlace {
  int head, key_head, row, rows;
  bool leads_head, leads_key_head;  // one tile of each writes to the ring for all

  __device__ TilePlace(const GatedDeltaRuleArgs& args, int tile_rows, int tiles) {
    const int tile = static_cast<int>(blockIdx.x) % tiles;
    const int shared_by = args.heads / args.key_heads;
    head = static_cast<int>(blockIdx.x) / tiles;
    key_head = head / shared_by;
    row = tile * tile_rows;
    rows = min(tile_rows, args.value_size - row);
    leads_head = tile == 0;
    leads_key_head = leads_head && head % shared_by == 0;
  }

  __device__ int32_t* folded(const GatedDeltaRuleArgs& args, int64_t block) const {
    return args.folded + block * args.folded_stride + head * (args.value_size / kFoldRows) +
           row / kFoldRows;
  }

  __device__ void write_folded(const GatedDeltaRuleArgs& args, int64_t block, int count) const {
    if (thread_index() < rows / kFoldRows) folded(args, block)[thread_index()] = count;
  }
};

// The new tokens of a sequence: rows [first, first + count) at positions [start, end).
struct Chunk {
  int64_t first, read, write;
  int count, start, end;
  bool has_read, has_write, is_short;
  int start_slot;  // row of the ring at `start`

  __device__ Chunk(const GatedDeltaRuleArgs& args, int sequence) {
    const StateSequences& sequences = args.sequences;
    const int32_t begin = sequences.cu_seqlens_q[sequence];
    count = sequences.cu_seqlens_q[sequence + 1] - begin;
    end = sequences.seq_lens[sequence];
    read = sequences.state_read[sequence];
    write = sequences.state_write[sequence];
    first = begin;
    start = end - count;
    has_read = read >= 0 && read < sequences.num_blocks;
    has_write = write >= 0 && write < sequences.num_blocks;
    is_short = count <= args.ring / 2;
    start_slot = static_cast<int>(static_cast<uint32_t>(start) % static_cast<uint32_t>(args.ring));
  }

  // Whether its tokens go into the ring.
  __device__ bool keeps() const { return is_short && has_write; }

  __device__ int slot(const GatedDeltaRuleArgs& args, int token) const {
    const int at = start_slot + token;
    return at < args.ring ? at : at - args.ring;
  }

  // Whether S stays as it is, with `before` tokens in the ring.
  __device__ bool stays(const GatedDeltaRuleArgs& args, int before) const {
    return is_short && read == write && before + count <= args.ring / 2;
  }
};

// The tokens before the chunk that are in the ring of the block that is read.
struct Ring {
  int count;
  int begin_slot;

  // Whatever `folded` is, half of the ring is read at most.
  __device__ Ring(const GatedDeltaRuleArgs& args, const Chunk& chunk, int folded) : count(0) {
    if (chunk.has_read && folded < chunk.start) {
      const int least = max(chunk.start - args.ring / 2, 0);
      count = chunk.start - max(folded, least);
    }
    begin_slot = chunk.start_slot - count;
    if (begin_slot < 0) begin_slot += args.ring;
  }

  __device__ int slot(const GatedDeltaRuleArgs& args, int token) const {
    const int at = begin_slot + token;
    return at < args.ring ? at : at - args.ring;
  }
};

// Rows of no sequence are zero; every block of threads has a slice of them.
template <class T>
__device__ inline void write_zeros(const GatedDeltaRuleArgs& args, const TilePlace& place) {
  const StateSequences& sequences = args.sequences;
  const int64_t first = sequences.cu_seqlens_q[sequences.num_seqs];
  const int64_t count = (sequences.num_tokens - first) * place.rows;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int64_t row = (first + i / place.rows) * args.heads + place.head;
    static_cast<T*>(args.out)[row * args.value_size + place.row + i % place.rows] =
        from_float<T>(0.0f);
  }
}

}  // namespace rtp_llm::cuda
