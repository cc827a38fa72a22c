// SPDX-License-Identifier: Apache-2.0
// Drawing tokens from rows of float32 logits, log-probabilities, and changes of logits before.
//
// Weights are integers: 2^40 for the most likely token, so that their sums are exact and neither
// the order of additions nor the size of a group changes a draw. No float64, which many GPUs lack.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/sampling/beams.h"
#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm::xpu {

constexpr int kWeightBits = 40;
// Sums of weights stay below 2^63.
constexpr int64_t kMaxVocab = int64_t{1} << (63 - kWeightBits);

struct RankedLogprobsArgs {
  TopLogprobsArgs top;
  uint64_t* keys;  // [num_rows, k], scratch
};

// Tokens of the history are counted in rows of scratch, each of which serves many rows of logits.
struct CountedPenaltyArgs {
  ApplyPenaltiesArgs penalties;
  int32_t* counts;  // [num_counts, vocab], zeros before and after
  int64_t num_counts;
};

struct ScratchBeamsArgs {
  SelectBeamsArgs select;
  float* totals;    // [num_beams, columns]
  int32_t* chosen;  // [num_beams]
};

struct ScratchOrderArgs {
  OrderBeamsArgs order;
  int32_t* scratch;  // [num_beams, table_width + 2]
};

}  // namespace rtp_llm::xpu
