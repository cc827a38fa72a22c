// Gated activations: out = f(gate) * up, where a row of x is the gate half, then the up half.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm::cpu {

enum class Activation : int8_t { kSilu, kGelu, kGeluTanh };

// Work is cut into pieces of a row, so that one wide row can use several threads.
constexpr int64_t kActivationPiece = 2048;

struct GatedActivationArgs {
  const void* x;
  void* out;
  int64_t size;      // columns of out; x has twice as many
  int64_t x_stride;  // in elements
  int64_t pieces;    // of each row: ceil(size / kActivationPiece)
  DType dtype;
  Activation activation;
};

// begin and end count pieces, over all rows.
RTP_LLM_FOR_EACH_ISA(void gated_activation(const GatedActivationArgs& args, int64_t begin,
                                           int64_t end);)

}  // namespace rtp_llm::cpu
