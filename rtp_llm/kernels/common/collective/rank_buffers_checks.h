// SPDX-License-Identifier: Apache-2.0
// Checks what is common to the operators of ranks that write into each other's memory, for every
// device. What addresses point to is not looked at.
#pragma once

#include "rtp_llm/kernels/common/collective/rank_buffers.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

constexpr int64_t kPackBytes = 16;  // what kernels read and write at once

RankBuffers rank_buffers(const Tensor& buffers, const Tensor& state, int64_t rank, int64_t capacity,
                         int64_t max_blocks);

// `elements`: the size and the stride of rows.
void check_packs(const Tensor& tensor, std::initializer_list<int64_t> elements, const char* what);

template <class Call>
RankBuffers rank_buffers(const Call& call) {
  return rank_buffers(call.buffers, call.state, call.rank, call.capacity, call.max_blocks);
}

}  // namespace rtp_llm::glue
