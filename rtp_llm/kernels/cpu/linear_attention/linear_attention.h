// SPDX-License-Identifier: Apache-2.0
// Linear attention with states: the gated delta rule, Mamba-2's scan and the short convolution in
// front of them.
//
// gated_delta_rule is cut into items: some value heads of one key head of a sequence, or some rows
// of the state of one. Every row of a state is computed alike in whichever item it is, so that a
// sequence's result depends neither on its batch nor on the number of threads.
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Channels of a work item of causal_conv1d, of all sequences.
constexpr int64_t kConvChannels = 256;
// Value heads of an item at most, rows of a tile of the state at least.
constexpr int kMaxHeads = 4;
constexpr int kLeastRows = 32;
// A prompt's tokens that are computed together.
constexpr int kChunk = 64;

// Rows [row, row + rows) of the states of value heads [head, head + heads), which share a key head.
struct DeltaRuleItem {
  int64_t sequence;
  int head, heads;
  int row, rows;
};

// Rows of matrices in scratch: whole vectors of any width, and not all in the same sets of a cache.
constexpr int64_t scratch_stride(int64_t size) { return (size + 15) / 16 * 16 + 16; }

// Float32 numbers that a thread needs for items of `heads` heads and `rows` rows. A step adds to
// the ring.
int64_t delta_rule_step_scratch(const GatedDeltaRuleArgs& args);
int64_t delta_rule_prompt_scratch(const GatedDeltaRuleArgs& args, int heads, int rows);

// Throw std::runtime_error when what index tensors hold does not fit.
void check_causal_conv1d(const CausalConv1dArgs& args);
void check_gated_delta_rule(const GatedDeltaRuleArgs& args, const char* name);

// Bytes of scratch, aligned to 64, that run_gated_delta_rule() needs.
int64_t gated_delta_rule_scratch(const GatedDeltaRuleArgs& args, int threads);

// Bytes that mamba2_scan keeps the gates of every head and token in.
int64_t mamba2_scan_scratch(const Mamba2ScanArgs& args, int threads);

// Both write every row of out: zeros to rows that belong to no sequence.
void run_causal_conv1d(const CausalConv1dArgs& args, const ParallelFor& parallel);
void run_gated_delta_rule(const GatedDeltaRuleArgs& args, float* scratch,
                          const ParallelFor& parallel);

// Tiles of kConvChannels channels; an item; heads, each of every sequence.
RTP_LLM_FOR_EACH_ISA(void causal_conv1d(const CausalConv1dArgs& args, int64_t begin, int64_t end);
                     void gated_delta_rule(const GatedDeltaRuleArgs& args,
                                           const DeltaRuleItem& item, float* scratch);
                     void mamba2_scan(const Mamba2ScanArgs& args, float* gates, int64_t begin,
                                      int64_t end);)

}  // namespace rtp_llm::cpu
