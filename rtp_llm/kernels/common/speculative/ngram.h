// SPDX-License-Identifier: Apache-2.0
// Arguments of drafts by n-grams: histories of tokens, and what a step drafts and accepts.
// rtp_llm/ops/speculative says what is computed. Indices are not checked: kernels skip what is not
// there.
#pragma once

#include <cstdint>

namespace rtp_llm {

// The outputs of a step, and where the rows of each lie.
struct OutputRows {
  const int32_t* histories;  // [num_outputs]; outside the histories: none
  const int32_t* cu_rows;    // [num_outputs + 1]
  int64_t num_outputs, num_rows;
};

struct MatchNgramsArgs {
  int32_t* drafts;         // [num_rows]
  const int32_t* history;  // [num_histories, capacity]
  const int32_t* lens;     // [num_histories]
  OutputRows rows;
  int64_t num_histories, capacity, stride;  // in elements
  int64_t min_n, max_n;
};

struct AppendAcceptedArgs {
  int32_t* history;  // [num_histories, capacity]
  int32_t* lens;     // [num_histories]
  const int32_t* tokens;
  const int32_t* drafts;
  OutputRows rows;
  int64_t num_histories, capacity, stride;
};

}  // namespace rtp_llm
