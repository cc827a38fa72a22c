// SPDX-License-Identifier: Apache-2.0
// Arguments of GEMMs of block-scaled FP8 (e4m3): out [M, N] = q [M, K] * weight [N, K] transposed,
// with a float32 scale for each 128 channels of a row of q and for each 128x128 tile of weight.
#pragma once

#include <cstdint>

namespace rtp_llm {

// Which rows of q meet which weight.
enum class Fp8Form : int8_t {
  kPlain,       // all of them the only one
  kMasked,      // q [G, M, K]: of group g the first indices[g] rows
  kContiguous,  // q [M, K]: 128 rows at a time the one that indices names at their first row
  kRagged,      // q [M, K]: of group g indices[g] rows from starts[g] on
};

struct Fp8GemmArgs {
  const void* q;               // [M, K], of kMasked [G, M, K]
  const float* scales;         // [K / 128, scale_rows], of kMasked with G in front
  const void* weight;          // [G, N, K]
  const float* weight_scales;  // [G, ceil(N / 128), K / 128]
  const int32_t* indices;      // see Fp8Form
  const int32_t* starts;       // [G + 1] of kRagged, multiples of 4: so copies of scales begin
  void* out;                   // bfloat16 [M, N], of kMasked [G, M, N]
  int64_t groups;              // of weight
  int64_t rows;                // M
  int64_t scale_rows;          // M rounded up to 4
  int64_t outputs;             // N, a multiple of 64
  int64_t columns;             // K, a multiple of 128
  int64_t expected_rows;       // of a group, as a rule; 0: not known
  int num_sms;                 // that may be used; -1: all
  bool swap_ab;                // weight is the tall operand
  Fp8Form form;
};
using Fp8LinearArgs = Fp8GemmArgs;
using Fp8GroupedMaskedArgs = Fp8GemmArgs;
using Fp8GroupedContiguousArgs = Fp8GemmArgs;
using Fp8GroupedRaggedArgs = Fp8GemmArgs;

}  // namespace rtp_llm
