// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of scatter_fp8 and describes them to kernels.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_scatter.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// The results are not yet filled.
struct Fp8Scatter {
  Fp8ScatterArgs args;
  Tensor q, scales, rows, starts, counts;
};

Fp8Scatter fp8_scatter(const Tensor& x, const Tensor& ids, const Tensor& places,
                       const Tensor& offsets, bool ragged);

}  // namespace rtp_llm::glue
