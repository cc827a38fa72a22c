// out = x weight^T + bias for int8 weights with a float32 scale for every 64 columns of a row.
//
// x is quantised as it comes, with a scale for every 64 columns of its rows too, so that products
// are sums of whole numbers; the sums over the groups of columns are float32, in order: a row of x
// gives the same bits in every batch, and on every instruction set up to the rounding of the
// scales.
//
// The weight is packed (rtp_llm/quantization/int8.py does it): blocks of 16 rows, in a block groups
// of 64 columns, in a group steps of 4 columns; a step holds the 4 bytes of each row of the block
// side by side, which is what a dot product instruction takes. The last block has the rows that are
// left. Bytes are the numbers plus 128. The scales are packed likewise: blocks, groups, rows.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

constexpr int kInt8GroupColumns = 64;

// Strides are in elements. Groups is k in groups of 64 columns, rounded up.
struct Int8LinearArgs {
  DType dtype;            // of x, bias and out
  const void* x;          // [m, k]
  const uint8_t* weight;  // n * groups * 64 bytes
  const float* scale;     // n * groups
  const void* bias;       // [n] or null
  void* out;              // [m, n]
  int64_t m, n, k, groups;
  int64_t x_stride, out_stride;
};

void run_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu
