// SPDX-License-Identifier: Apache-2.0
// Arguments of the verification of drafts that were sampled from a distribution of their own.
#pragma once

#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm {

// A sample for each row: its draft if rejection sampling accepts it. Row r of `draft_logits` is the
// distribution from which draft r was sampled, at the row's temperature and without filters. Rows
// with a draft outside the vocabulary are sampled as usual.
struct RejectionSampleArgs {
  SampleArgs sample;
  const int32_t* drafts;
  LogitRows draft_logits;  // at least as many rows; its vocabulary is not larger
  const int32_t* columns;  // [vocab], of draft_logits (outside: none); null: the token itself

  // The column of token i; a column outside draft_logits means none.
  constexpr int64_t column(int64_t i) const { return columns == nullptr ? i : columns[i]; }
};

// Philox steps that decide whether drafts are accepted; disjoint from the steps used to sample.
constexpr uint64_t kAcceptSteps = uint64_t{2} << 32;

}  // namespace rtp_llm
