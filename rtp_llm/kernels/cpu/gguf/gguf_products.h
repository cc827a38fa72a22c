// SPDX-License-Identifier: Apache-2.0
// Products with weights in interleaved GGUF blocks. They meet x in 8 bits (or as floats): few rows
// of it meet codes that are decoded in registers; for more rows some panels are decoded once.
// Either way a row gives the same bits.
#pragma once

#include <vector>

#include "rtp_llm/kernels/common/gguf/gguf_linear.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Products of one type, of weights of one shape, and with activations of as many bits; none is
// empty. Those of few rows share the threads.
void multiply_interleaved(const std::vector<GgufLinearArgs>& products, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu
