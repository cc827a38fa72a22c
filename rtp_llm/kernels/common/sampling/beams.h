// SPDX-License-Identifier: Apache-2.0
// Arguments of the operators of beam search.
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

// Beam cu_beams[g] + i goes on with the i-th of the k candidates of group g that is there and has
// none of the stop ids of the group's search.
struct ChooseBeamsArgs {
  const int32_t* parents;  // [num_groups, k], counted from the first beam of the group
  const int32_t* tokens;   // [num_groups, k]; -1: there is no such candidate
  const float* totals;     // [num_groups, k]
  const int32_t* widths;   // [num_groups]: beams that go on
  const int32_t* rows;     // [num_beams]; -1: nobody reads the token of the beam
  const int32_t* cu_beams;
  const int32_t* cu_groups;
  const int32_t* stop_ids;
  const int32_t* cu_stops;
  float* scores;          // [num_scores]
  int32_t* beam_parents;  // [num_scores], counted from the first beam of all
  int32_t* row_tokens;    // [num_rows]
  int64_t k, num_groups, num_searches, num_beams, num_scores, num_stops, num_rows;

  constexpr bool is_row(int64_t row) const { return row >= 0 && row < num_rows; }
};

// Tables of the beams of a group follow those of the beams' parents, see ops.order_beams.
struct OrderBeamsArgs {
  int32_t* block_table;   // [num_sequences or more, table_width]
  int32_t* slot_mapping;  // [num_sequences or more]
  const int32_t* positions;
  const int32_t* sequences;     // [num_beams]; -1: not in the step
  const int32_t* beam_parents;  // [num_beams or more], counted from the first beam of all
  const int32_t* cu_beams;
  int32_t* pairs;  // [num_beams, 2]
  int64_t num_sequences, table_width, num_beams, num_groups;
  int32_t block_size;

  constexpr bool is_sequence(int64_t sequence) const {
    return sequence >= 0 && sequence < num_sequences;
  }
};

}  // namespace rtp_llm
