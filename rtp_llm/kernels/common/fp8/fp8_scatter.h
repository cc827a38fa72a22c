// SPDX-License-Identifier: Apache-2.0
// Arguments of tokens that go, as block-scaled FP8 (e4m3), to the places of their experts.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"

namespace rtp_llm {

// What sort_by_expert says of the entries (token * top_k + j): entry i is the
// (places[i] - offsets[e])-th of its expert e = ids[i].
struct Fp8ScatterArgs {
  const void* x;           // [tokens, hidden]
  const int32_t* ids;      // [tokens, top_k]; outside [0, slots): nowhere
  const int32_t* places;   // [tokens, top_k]
  const int32_t* offsets;  // [slots + 1]
  void* q;                 // e4m3 [slots, plane_rows, columns]; ragged: [plane_rows, columns]
  float* scales;           // [slots, columns / 128, scale_rows]; ragged: without slots
  int32_t* rows;           // [tokens, top_k]: the row of q of each entry, of all planes, or -1
  int32_t* starts;         // [slots + 1], ragged only: each expert's first row, then the end
  int32_t* counts;         // [slots]
  int64_t tokens;
  int64_t top_k;
  int64_t slots;
  int64_t hidden;
  int64_t columns;     // hidden rounded up to 128: zeros follow
  int64_t plane_rows;  // tokens; ragged: see fp8_ragged_rows
  int64_t scale_rows;  // plane_rows rounded up to 4
  DType dtype;
  bool ragged;  // the experts' rows are consecutive, each expert's from a multiple of 4 on
};

// The rows needed for `entries` entries of `slots` experts, however they are spread: each expert's
// rows begin at a multiple of kFp8RowUnit.
constexpr int64_t fp8_ragged_rows(int64_t entries, int64_t slots) {
  return (entries + slots * (kFp8RowUnit - 1)) / kFp8RowUnit * kFp8RowUnit;
}

// The operators.
using ScatterFp8Args = Fp8ScatterArgs;
using ScatterFp8RaggedArgs = Fp8ScatterArgs;

}  // namespace rtp_llm
