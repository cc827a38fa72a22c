// SPDX-License-Identifier: Apache-2.0
// Arguments of the gated activations: out = f(gate) * up, where a row of x is the gate half, then
// the up half.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

enum class Activation : int8_t { kSilu, kGelu, kGeluTanh };

struct GatedActivationArgs {
  const void* x;
  void* out;  // contiguous
  int64_t rows;
  int64_t size;      // columns of out; x has twice as many
  int64_t x_stride;  // in elements
  DType dtype;
  Activation activation;
};

}  // namespace rtp_llm
