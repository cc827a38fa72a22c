// SPDX-License-Identifier: Apache-2.0
// Arguments of products of experts in MXFP4 with bfloat16 activations, on tensor cores.
#pragma once

#include <cstdint>

namespace rtp_llm {

// Products of the rows of each expert, which are sorted by expert. Weights are in the order in
// which matrix instructions take them (rtp_llm.ops.moe.mxfp4_experts_layout).
struct Mxfp4ExpertsArgs {
  const void* x;           // bfloat16 [.., k], contiguous
  const void* weight;      // [experts, n / 32, k / 64, 2, 32, 16] bytes
  const void* scales;      // [experts, n / 32, k / 64, 2, 8, 4] bytes: exponents, see the layout
  const void* bias;        // bfloat16 [experts, n]
  const int32_t* rows;     // [entries]: entry p has row rows[p] / top_k of x; null: row p
  const int32_t* offsets;  // [experts + 1]
  void* out;               // bfloat16 [entries, n], or [entries, n / 2] if gated
  int64_t entries, n, k;
  int experts, top_k;
  float alpha, limit;  // of the gate
};

// By the names of their operators, as generated glue has them.
using Mxfp4ExpertsGateUpArgs = Mxfp4ExpertsArgs;
using Mxfp4ExpertsDownArgs = Mxfp4ExpertsArgs;

}  // namespace rtp_llm
