// SPDX-License-Identifier: Apache-2.0
// A block of one row taken apart: what the types of GGUF have in common.
//
// A weight is scale * value(code) - min, where scale and min belong to a group of 16 or 32
// columns. A unit is a block with its codes one to a byte.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/gguf/gguf_linear.h"

namespace rtp_llm::cpu {

constexpr int kGgufMaxUnit = 256;  // columns of a block
constexpr int kGgufMaxGroups = 16;

struct GgufUnit {
  uint8_t codes[kGgufMaxUnit];
  // Bits of float16: of the block, each to be multiplied with those of groups. MXFP4: its exponent.
  uint16_t scale, min;
  // Of each group, where the type has them.
  uint8_t scales[kGgufMaxGroups], mins[kGgufMaxGroups];
};

// The block at `block` as it is in a file.
void read_unit(GgufType type, const uint8_t* block, GgufUnit* unit);

// The floats of a unit, bit by bit as ggml computes them.
void unit_floats(GgufType type, const GgufUnit& unit, float* weights);

}  // namespace rtp_llm::cpu
