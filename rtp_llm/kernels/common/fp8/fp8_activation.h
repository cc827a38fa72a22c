// SPDX-License-Identifier: Apache-2.0
// Arguments of activations as block-scaled FP8 (e4m3): q * scale is x, or silu(gate) * up of it,
// with a scale for each 128 channels of a row.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

struct Fp8ActivationArgs {
  const void* x;            // [groups, rows, K], gated [groups, rows, 2 K]
  const int32_t* masked_m;  // [groups]: how many rows there are; null: all
  void* q;                  // e4m3 [groups, rows, K]
  float* scales;            // [groups, ceil(K / 128), scale_rows]
  int64_t groups;
  int64_t rows;
  int64_t scale_rows;  // rows rounded up to 4; the padding is set to zero
  int64_t columns;     // K
  DType dtype;         // of x
  bool gated;
};

// The operators.
using Fp8QuantizeArgs = Fp8ActivationArgs;
using SiluAndMulFp8Args = Fp8ActivationArgs;

}  // namespace rtp_llm
