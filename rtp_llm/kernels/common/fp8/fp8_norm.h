// SPDX-License-Identifier: Apache-2.0
// Arguments of a norm with a block-scaled FP8 (e4m3) result: q * scale is
// x / sqrt(mean(x^2) + eps) * (weight + offset), with a scale for each 128 channels of a row.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

struct NormFp8Args {
  const void* pending;  // [rows, size], added to residual in place before; null: nothing
  void* residual;       // [rows, size]: x
  const void* weight;   // [size]
  void* q;              // e4m3 [rows, size]
  float* scales;        // [size / 128, scale_rows]
  int64_t rows;
  int64_t scale_rows;  // rows rounded up to 4; the padding is set to zero
  int64_t size;        // a multiple of 128, at most kMaxFp8NormChannels
  int64_t pending_stride;
  int64_t residual_stride;
  DType dtype;
  float eps;
  float offset;
};

constexpr int64_t kMaxFp8NormChannels = 16384;

}  // namespace rtp_llm
