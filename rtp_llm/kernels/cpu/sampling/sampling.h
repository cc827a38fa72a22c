// SPDX-License-Identifier: Apache-2.0
// Drawing tokens from rows of logits, and log-probabilities of the most likely ones.
//
// A row is never sorted: its order (logit descending, index ascending) is looked at only where a
// filter ends, through a histogram of weights (sampling_order.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/parallel.h"
#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm::cpu {

// Bytes of scratch, aligned to 64, that the functions below want.
size_t sampling_scratch_bytes(const LogitRows& logits, int num_threads);

void run_sample(const SampleArgs& args, void* scratch, const ParallelFor& parallel);
void run_rejection_sample(const RejectionSampleArgs& args, void* scratch,
                          const ParallelFor& parallel);
void run_top_logprobs(const TopLogprobsArgs& args, void* scratch, const ParallelFor& parallel);

// Changes of logits in place. Offsets of histories and rows have been checked.

// `counts` [parallel.num_threads(), vocab] holds zeros before and after.
void run_penalties(const PenaltyArgs& args, int32_t* counts, const ParallelFor& parallel);
void run_bitmask(const BitmaskArgs& args, const ParallelFor& parallel);
void run_ngram_ban(const NgramArgs& args, const ParallelFor& parallel);
void run_logit_bias(const LogitBiasArgs& args);

}  // namespace rtp_llm::cpu
