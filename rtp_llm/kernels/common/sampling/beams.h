// SPDX-License-Identifier: Apache-2.0
// Arguments of the selection of beams.
#pragma once

#include <cstdint>

namespace rtp_llm {

// Group g has beams [cu_beams[g], cu_beams[g + 1]), search s groups [cu_groups[s],
// cu_groups[s + 1]) and stop ids [cu_stops[s], cu_stops[s + 1]). Candidate i of a group is column
// i % columns of its beam i / columns; of equal totals the first one comes first.
struct SelectBeamsArgs {
  const float* values;  // [num_rows, columns], descending
  const int32_t* ids;   // [num_rows, columns]
  const int32_t* rows;  // [num_beams]; -1: the beam has no candidates
  const float* scores;  // [num_beams]
  const int32_t* cu_beams;
  const int32_t* cu_groups;
  const float* diversity_penalty;  // [num_searches]
  const int32_t* stop_ids;
  const int32_t* cu_stops;
  int64_t num_rows, columns, num_beams, num_groups, num_searches, num_stops;
  int64_t k;
  int32_t* parents;  // [num_groups, k]
  int32_t* tokens;   // [num_groups, k]
  float* totals;     // [num_groups, k]
  float* logprobs;   // [num_groups, k]

  constexpr bool is_row(int64_t row) const { return row >= 0 && row < num_rows; }
};

}  // namespace rtp_llm
