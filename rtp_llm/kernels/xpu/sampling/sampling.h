// SPDX-License-Identifier: Apache-2.0
// Drawing tokens from rows of float32 logits, log-probabilities, and changes of logits before.
//
// Weights are integers: 2^40 for the most likely token, so that their sums are exact and neither
// the order of additions nor the size of a group changes a draw. No float64, which many GPUs lack.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/sampling/sampling.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

constexpr int kWeightBits = 40;
// Sums of weights stay below 2^63.
constexpr int64_t kMostVocab = int64_t{1} << (63 - kWeightBits);

void sample(Queue& queue, const SampleArgs& args);

struct RankedLogprobsArgs {
  TopLogprobsArgs top;
  uint64_t* keys;  // [num_rows, k], scratch
};
void top_logprobs(Queue& queue, const RankedLogprobsArgs& args);

// Masks for rows that are not there are ignored.
void apply_token_bitmask(Queue& queue, const BitmaskArgs& args);

// Tokens of the history are counted in rows of scratch, each of which serves many rows of logits.
struct CountedPenaltyArgs {
  PenaltyArgs penalties;
  int32_t* counts;  // [num_counts, vocab], zeros before and after
  int64_t num_counts;
};
void apply_penalties(Queue& queue, const CountedPenaltyArgs& args);

// Rows of scratch worth having: more groups than that gain nothing.
constexpr int64_t penalty_counts(int64_t rows) { return rows < 64 ? rows : 64; }

void ban_repeated_ngrams(Queue& queue, const NgramArgs& args);

// Rows that are not there are ignored.
void add_logit_bias(Queue& queue, const LogitBiasArgs& args);

}  // namespace rtp_llm::xpu
