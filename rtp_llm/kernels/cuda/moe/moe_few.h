// SPDX-License-Identifier: Apache-2.0
// What experts of few tokens need besides their products, in as few kernels as can be: for NVIDIA
// GPUs alone.
#pragma once

#include "rtp_llm/kernels/common/moe/moe.h"

namespace rtp_llm::cuda {

// Most tokens, and experts of a token.
constexpr int kRoutedTokens = 128;
constexpr int kRoutedExperts = 16;
constexpr int kTileEntries = 16;

// Softmax selection without groups, and the order of what is selected: of entries of the experts
// that are here, which are sorted from 0 on. With `gate` there is one more expert, behind the
// others and the last of each token, whose weight is a sigmoid. A tile is
// of at most kTileEntries sorted entries of one expert: its expert << 16 | its first entry, -1
// behind the last tile. Those of the one more come first: they take as long as any, and all have
// some.
struct RouteArgs {
  TopkArgs topk;          // ids is not used; weights [tokens, k] with the shared expert's
  SortByExpertArgs sort;  // `experts` with the one more
  int first;              // of the experts here
  const void* x;     // [tokens, hidden], contiguous; rows begin at multiples of 16 bytes, as does
  const void* gate;  // [hidden] or null
  int* ids;          // [tokens, k], scratch
  int32_t* tiles;    // [sort.count]
  int64_t hidden;
  DType dtype;  // of x and gate: bfloat16 or float16
};

void route_experts(const RouteArgs& args, void* stream);

// residual [t] += sum over j of weights[t, j] y[places[t, j]]; args.out is the residual, whose rows
// are `stride` elements apart.
void add_experts(const SumExpertsArgs& args, int64_t stride, void* stream);

}  // namespace rtp_llm::cuda
