// SPDX-License-Identifier: Apache-2.0
// Arguments of the choice among what ranks have found in their columns of the logits.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/collective/rank_buffers.h"

namespace rtp_llm {

// tokens and status [rows] of the largest logit of this rank's columns -> of all ranks' columns.
struct BestTokenArgs {
  RankBuffers buffers;
  const float* logits;  // [rows, columns]
  int32_t* tokens;
  int8_t* status;
  int64_t rows;
  int64_t logits_stride;
  int32_t first;  // of this rank's columns among all
};

}  // namespace rtp_llm
