// SPDX-License-Identifier: Apache-2.0
// Which experts a token goes to, and the order in which experts take their tokens.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/moe/moe.h"

namespace rtp_llm::cpu {

// Selects for the tokens [begin, end).
void select_experts(const TopkArgs& args, int64_t begin, int64_t end);

void fake_balance(const FakeBalanceArgs& args);

void sort_by_expert(const ExpertSortArgs& args);

}  // namespace rtp_llm::cpu
