// SPDX-License-Identifier: Apache-2.0
// Drawing tokens from rows of logits, log-probabilities of the most likely ones, and changes of
// logits before a draw. A cluster of blocks works on each row (cluster.h), or one block.
//
// A row is never sorted: sampling_order.h finds the token at a place of its order.
#pragma once

#include <cstddef>

#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm::cuda {

// What glue runs, declared there: NAME(args[, scratch], stream), marked by RTP_LLM_OPERATOR. Masks
// and biases of rows that are not there are ignored; offsets of histories are kept within their
// tokens.

}  // namespace rtp_llm::cuda
