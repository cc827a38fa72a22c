// SPDX-License-Identifier: Apache-2.0
// The new tokens of a sequence, for kernels that keep a state.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"

namespace rtp_llm::xpu {

struct StateChunk {
  int64_t row, count;   // of the chunk's tokens in the batch; none where `valid` is false
  int64_t start;        // position of the first one
  int64_t read, write;  // blocks; -1: none
  bool valid;           // the indices are in range
};

inline StateChunk state_chunk(const StateSequences& sequences, int64_t b) {
  const int64_t first = sequences.cu_seqlens_q[b], last = sequences.cu_seqlens_q[b + 1];
  if (first < 0 || last <= first || last > sequences.num_tokens) return {0, 0, 0, -1, -1, false};
  StateChunk chunk = {first,
                      last - first,
                      sequences.seq_lens[b] - (last - first),
                      sequences.state_read[b],
                      sequences.state_write[b],
                      true};
  if (chunk.write < 0 || chunk.write >= sequences.num_blocks) chunk.write = -1;
  chunk.valid = chunk.start >= 0 && chunk.read >= -1 && chunk.read < sequences.num_blocks;
  return chunk;
}

}  // namespace rtp_llm::xpu
