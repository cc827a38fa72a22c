// SPDX-License-Identifier: Apache-2.0
// Arguments of the sampling operators: drawing tokens from rows of logits, log-probabilities of the
// most likely ones, and changes of logits before a draw.
//
// The order of a row is logit descending, index ascending.
#pragma once

#include <cstdint>

namespace rtp_llm {

// Rows of float32 logits; `stride` elements from one to the next.
struct LogitRows {
  const float* data;
  int64_t stride, num_rows, vocab;

  constexpr const float* row(int64_t r) const { return data + r * stride; }
};

// Per row: temperature not above 0 (or NaN) = arg max; top_k below 1, top_p not below 1 and min_p
// not above 0 = no filter. Filters apply in that order; each keeps a prefix of the row's order. Of
// what is left the token is drawn by index: the order of equal probabilities, which rounding may
// change, decides nothing.
struct SampleArgs {
  LogitRows logits;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* steps;
  int32_t* tokens;
  int8_t* status;  // RowStatus
};

// Whether a row has a distribution to draw from. One that has none gets the arg max of its finite
// logits, or 0.
enum RowStatus : int8_t {
  kDrawn = 0,
  kNotFinite = 1,  // there is a NaN or +inf
  kAllBanned = 2,  // every logit is -inf
};

struct TopLogprobsArgs {
  LogitRows logits;
  const int32_t* tokens;
  int64_t k;
  float* chosen;  // [num_rows]
  float* values;  // [num_rows, k], descending
  int32_t* ids;   // [num_rows, k]
};

// What log-probabilities of excluded tokens (and of ids outside the vocabulary) read.
constexpr float kLeastLogprob = -1e4f;

// Changes rows of logits in place. Tokens outside the vocabulary are ignored.
struct MutableRows {
  float* data;
  int64_t stride, num_rows, vocab;

  constexpr float* row(int64_t r) const { return data + r * stride; }
};

// Bit t % 32 of masks[p][t / 32] says whether row rows[p] may have token t; else its logit becomes
// -inf.
struct ApplyTokenBitmaskArgs {
  MutableRows logits;
  const uint32_t* masks;
  const int32_t* rows;
  int64_t num_masks;

  constexpr int64_t words() const { return (logits.vocab + 31) / 32; }
};

// Tokens of row r lie at [cu_tokens[r], cu_tokens[r + 1]).
struct TokenHistory {
  const int32_t* tokens;
  const int32_t* cu_tokens;
  int64_t size;  // of tokens

  const int32_t* begin(int64_t r) const { return tokens + cu_tokens[r]; }
  const int32_t* end(int64_t r) const { return tokens + cu_tokens[r + 1]; }
};

// For every different token of a row's history: logit l becomes l * repetition when negative and
// l / repetition otherwise. The last output_lens[r] tokens of the history were generated: for every
// different one among those less presence, then less frequency * (times it occurs there).
struct ApplyPenaltiesArgs {
  MutableRows logits;
  TokenHistory history;
  const int64_t* output_lens;  // those beyond the history count as all of it
  const float* repetition;
  const float* presence;
  const float* frequency;
};

// Bans (-inf) every token that would complete an n-gram which the row's history already has; n
// below 1 bans none.
struct BanRepeatedNgramsArgs {
  MutableRows logits;
  TokenHistory history;
  const int32_t* ngram_size;
};

// logits[rows[i]][ids[i]] += values[i].
struct AddLogitBiasArgs {
  MutableRows logits;
  const int32_t* rows;
  const int32_t* ids;
  const float* values;
  int64_t size;
};

}  // namespace rtp_llm
