// SPDX-License-Identifier: Apache-2.0
// The rows of an output, and which of them count.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

// Rows [begin, begin + count) of an output; none where they are not there.
struct Span {
  int64_t begin;
  int count;

  __device__ Span(const int32_t* cu_rows, int64_t num_rows, int64_t output)
      : begin(cu_rows[output]) {
    const int64_t end = cu_rows[output + 1];
    const bool known = begin >= 0 && end >= begin && end <= num_rows;
    count = known ? static_cast<int>(end - begin) : 0;
  }

  // The last row that counts, of at least one, for a group of lanes: the first row whose token
  // differs from the draft after it.
  __device__ int last_accepted(const int32_t* tokens, const int32_t* drafts, int lane) const {
    int accepted = count - 1;
    for (int i = lane; i < accepted; i += kGroup) {
      if (tokens[begin + i] != drafts[begin + i]) accepted = i;
    }
    return -reduce_group(-accepted, Max{});
  }
};

}  // namespace rtp_llm::cuda
