// SPDX-License-Identifier: Apache-2.0
// Arguments of the gated activations: out = f(gate) * up, where a row of x is the gate half, then
// the up half; and of plain ones, out = f(x).
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

enum class Activation : int8_t { kSilu, kGelu, kGeluTanh };

struct GatedActivationArgs {
  const void* x;
  void* out;  // contiguous
  int64_t rows;
  int64_t size;      // columns of out
  int64_t x_stride;  // in elements
  DType dtype;
  Activation activation;
  int64_t up;  // columns from a gate to its up half; 0: plain
};

using SiluAndMulArgs = GatedActivationArgs;
using GeluAndMulArgs = GatedActivationArgs;
using GeluArgs = GatedActivationArgs;

// On the CPU work is cut into chunks of a row, so that one wide row can use several threads.
constexpr int64_t kActivationChunk = 2048;

constexpr int64_t chunks_of_row(const GatedActivationArgs& args) {
  return (args.size + kActivationChunk - 1) / kActivationChunk;
}

}  // namespace rtp_llm
