// SPDX-License-Identifier: Apache-2.0
// Drawing tokens from rows of logits, log-probabilities of the most likely ones, and changes of
// logits before a draw. A cluster of blocks works on each row (cluster.h), or one block.
//
// A row is never sorted: sampling_order.h finds the token at a place of its order.
#pragma once

#include <cstddef>

#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm::cuda {

void sample(const SampleArgs& args, void* stream);

// Scratch of so many bytes.
int64_t rejection_sample_bytes(int64_t rows);
void rejection_sample(const RejectionSampleArgs& args, void* scratch, void* stream);

// 64-bit words of scratch for each row: k, rounded up to a power of two.
int64_t top_logprobs_words(int64_t k);
void top_logprobs(const TopLogprobsArgs& args, void* scratch, void* stream);

// A mask for a row that is not there is ignored.
void apply_token_bitmask(const BitmaskArgs& args, void* stream);
// Offsets of histories are kept within their tokens. `counts` [rows, vocab] may hold anything.
void apply_penalties(const PenaltyArgs& args, int32_t* counts, void* stream);
void ban_repeated_ngrams(const NgramArgs& args, void* stream);
// A bias for a row that is not there is ignored.
void add_logit_bias(const LogitBiasArgs& args, void* stream);

}  // namespace rtp_llm::cuda
