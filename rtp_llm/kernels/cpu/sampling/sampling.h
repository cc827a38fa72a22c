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

// What glue runs, declared there: NAME(args[, scratch], parallel), marked by RTP_LLM_OPERATOR.
// Scratch is aligned to 64 bytes; offsets of histories and rows have been checked.

}  // namespace rtp_llm::cpu
