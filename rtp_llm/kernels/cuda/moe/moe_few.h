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

// Softmax selection without groups, and the sorted order of the selected entries of local experts,
// which are numbered from 0. With `gate` there is a shared expert after the others, last among each
// token's, with a sigmoid as its weight. A tile has at most kTileEntries sorted entries of one
// expert: its expert << 16 | its first entry, -1 past the last tile. The shared expert's tiles come
// first: they take as long as any, and every token has one.
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
