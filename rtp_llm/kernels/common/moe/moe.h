// SPDX-License-Identifier: Apache-2.0
// Arguments of the routing of tokens to experts and of the products of sorted rows. T tokens, k
// experts of each, E experts.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Selection of k experts for each token. Softmax without groups is one group and no bias.
struct TopkArgs {
  const float* logits;  // [tokens, experts]
  const float* bias;    // [experts] or null: added to the scores that choose, not to the weights
  void* ids;            // [tokens, k], int32 or int64
  float* weights;       // [tokens, k]
  int64_t tokens;
  int64_t logits_stride;
  int experts, k;
  int groups, top_groups;  // only experts of the best groups are chosen
  int group_best;          // a group's score is the sum of this many of its best
  float scaling;           // of the weights
  bool wide_ids;           // int64
  bool sigmoid;            // else softmax
  bool renormalize;        // weights are divided by their sum
};

// Both selections.
using SelectTopkArgs = TopkArgs;
using GroupTopkArgs = TopkArgs;

struct FakeBalanceExpertArgs {
  void* ids;
  float* scales;
  int64_t count;
  int64_t local;       // experts of one rank
  int64_t first_rank;  // that entry 0 goes to
  int64_t first;       // local expert that entry 0 goes to
  int64_t ranks;
  bool wide_ids;
};

// Counting sort of the T k entries of ids by expert, in their order within an expert. Entries that
// name no expert come last and have the place -1.
struct SortByExpertArgs {
  const int32_t* ids;
  int32_t* rows;     // [count]: entry at each place
  int32_t* places;   // [count]: place of each entry
  int32_t* offsets;  // [experts + 1]: first place of each expert; last: entries with an expert
  int64_t count;
  int experts;
};

// out[r] = x[r] weight[e]^T for offsets[e] <= r < offsets[e + 1].
struct GroupedLinearArgs {
  const void* x;           // [rows, k], contiguous
  const void* weight;      // [experts, n, k], contiguous
  const int32_t* offsets;  // [experts + 1]
  void* out;               // [rows, n], contiguous
  int64_t rows, n, k;
  int experts;
  DType dtype;
};

// out[t] = sum over j of weights[t, j] y[places[t, j]] in float32; a negative place adds nothing.
struct SumExpertsArgs {
  const void* y;  // [rows, size], contiguous
  const int32_t* places;
  const float* weights;
  void* out;  // [tokens, size], contiguous
  int64_t rows, tokens, size;
  int k;
  DType dtype;
};

}  // namespace rtp_llm
