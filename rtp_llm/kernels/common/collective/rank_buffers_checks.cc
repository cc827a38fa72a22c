// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/collective/rank_buffers_checks.h"

namespace rtp_llm::glue {

RankBuffers rank_buffers(const Tensor& buffers, const Tensor& state, int64_t rank, int64_t capacity,
                         int64_t max_blocks) {
  check_dtype(buffers, DType::kInt64, "ranks: buffers");
  check_dim(buffers, 1, "ranks: buffers");
  check_contiguous(buffers, "ranks: buffers");
  const int64_t ranks = buffers.size(0) - 1;
  RTP_LLM_CHECK(ranks >= 1 && ranks <= kMaxRanks, "ranks: buffers is ", buffers.describe(),
                "; expected an address of each of at most ", kMaxRanks, " ranks, and one more");
  RTP_LLM_CHECK(rank >= 0 && rank < ranks, "ranks: rank is ", rank, "; expected one of ", ranks);
  check_dtype(state, DType::kInt32, "ranks: state");
  check_sizes(state, {kRankStateWords}, "ranks: state");
  check_contiguous(state, "ranks: state");
  RTP_LLM_CHECK(capacity % kPackBytes == 0 && capacity <= INT32_MAX, "ranks: capacity is ",
                capacity, "; expected a multiple of 16 bytes below 2 GiB");
  RTP_LLM_CHECK(max_blocks >= 0 && max_blocks <= INT32_MAX, "ranks: max_blocks is ", max_blocks);
  return {buffers.data<int64_t>(), state.data<int32_t>(),  capacity,
          static_cast<int>(ranks), static_cast<int>(rank), static_cast<int>(max_blocks)};
}

void check_packs(const Tensor& tensor, std::initializer_list<int64_t> elements, const char* what) {
  bool fits = reinterpret_cast<uintptr_t>(tensor.data()) % kPackBytes == 0;
  for (const int64_t each : elements) {
    fits = fits && each * element_size(tensor.dtype()) % kPackBytes == 0;
  }
  RTP_LLM_CHECK(fits || tensor.numel() == 0, what, " is ", tensor.describe(),
                "; expected rows that begin at multiples of 16 bytes and have as many");
}

}  // namespace rtp_llm::glue
