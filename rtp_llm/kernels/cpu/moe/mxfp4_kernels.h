// SPDX-License-Identifier: Apache-2.0
// What mxfp4.cc calls of one instruction set.
//
// A row of x lies in the panel with its columns in the order in which weights are decoded. So a
// product of decoded weights adds in the same order as one with the blocks, and gives the same
// bits.
#pragma once

#include "rtp_llm/kernels/common/moe/mxfp4.h"

namespace rtp_llm::cpu {

struct Mxfp4Kernels {
  DType panel_dtype;  // of rows of x in the panel, and of decoded weights
  int max_rows;       // of x, for `multiply`
  // Row `row` of x.
  void (*pack)(const Mxfp4GroupedLinearArgs&, int64_t row, void* panel);
  // out[row + i, first + j] for i < rows and j < count, with weights of `expert`; `panel` begins
  // with row `row`.
  void (*multiply)(const Mxfp4GroupedLinearArgs&, const void* panel, int64_t row, int rows,
                   int expert, int64_t first, int64_t count);
  // Weight rows [first, first + count) of `expert` as [count, k].
  void (*decode)(const Mxfp4GroupedLinearArgs&, int expert, int64_t first, int64_t count,
                 void* weight);
  // The same results as of `multiply`, from the sums float32 [rows, count].
  void (*store)(const Mxfp4GroupedLinearArgs&, const float* sums, int64_t row, int64_t rows,
                int expert, int64_t first, int64_t count);
};

// Those of tables are called with the arguments of their operator.
namespace scalar {
extern const Mxfp4Kernels kMxfp4Kernels, kTable4Kernels;
}
namespace avx2 {
extern const Mxfp4Kernels kMxfp4Kernels, kTable4Kernels;
}
namespace avx512 {
extern const Mxfp4Kernels kMxfp4Kernels, kTable4Kernels;
}
namespace avx512_bf16 {
extern const Mxfp4Kernels kMxfp4Kernels, kTable4Kernels;  // for bfloat16 alone
}

}  // namespace rtp_llm::cpu
