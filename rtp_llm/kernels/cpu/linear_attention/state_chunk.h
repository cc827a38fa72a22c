// SPDX-License-Identifier: Apache-2.0
// The new tokens of one sequence.
#pragma once

#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cpu/vec.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {

// Rows [row, row + count), at positions start..; negative blocks are none.
struct StateChunk {
  int64_t row, count, start;
  int64_t read, write;
};

inline StateChunk state_chunk(const StateSequences& sequences, int64_t index) {
  const int64_t row = sequences.cu_seqlens_q[index];
  const int64_t count = sequences.cu_seqlens_q[index + 1] - row;
  const int64_t write = sequences.state_write[index];
  return {row, count, sequences.seq_lens[index] - count, sequences.state_read[index],
          write < sequences.num_blocks ? write : -1};
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
