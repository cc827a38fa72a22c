#include "rtp_llm/kernels/common/collective/all_reduce_checks.h"

namespace rtp_llm::glue {
namespace {

constexpr int64_t kAccessBytes = 16;

// Of either operator.
template <class Call>
RankBuffers buffers_of(const Call& call) {
  check_dtype(call.buffers, DType::kInt64, "all_reduce: buffers");
  check_dim(call.buffers, 1, "all_reduce: buffers");
  check_contiguous(call.buffers, "all_reduce: buffers");
  const int64_t ranks = call.buffers.size(0) - 1;
  RTP_LLM_CHECK(ranks >= 1 && ranks <= kMostRanks, "all_reduce: buffers is ",
                call.buffers.describe(), "; expected an address of each of at most ", kMostRanks,
                " ranks, and one more");
  RTP_LLM_CHECK(call.rank >= 0 && call.rank < ranks, "all_reduce: rank is ", call.rank,
                "; expected one of ", ranks);
  check_dtype(call.state, DType::kInt32, "all_reduce: state");
  check_sizes(call.state, {kRankStateWords}, "all_reduce: state");
  check_contiguous(call.state, "all_reduce: state");
  RTP_LLM_CHECK(call.capacity % kAccessBytes == 0 && call.capacity <= INT32_MAX,
                "all_reduce: capacity is ", call.capacity,
                "; expected a multiple of 16 bytes below 2 GiB");
  RTP_LLM_CHECK(call.most_blocks >= 0 && call.most_blocks <= INT32_MAX,
                "all_reduce: most_blocks is ", call.most_blocks);
  RTP_LLM_CHECK(call.x.numel() * element_size(call.x.dtype()) <= call.capacity, "all_reduce: x is ",
                call.x.describe(), "; expected at most ", call.capacity, " bytes");
  return {call.buffers.template data<int64_t>(),
          call.state.template data<int32_t>(),
          call.capacity,
          static_cast<int>(ranks),
          static_cast<int>(call.rank),
          static_cast<int>(call.most_blocks)};
}

// Kernels read 16 bytes at once. `elements`: the size and the stride of rows.
void check_access(const Tensor& tensor, std::initializer_list<int64_t> elements, const char* what) {
  bool fits = reinterpret_cast<uintptr_t>(tensor.data()) % kAccessBytes == 0;
  for (const int64_t each : elements) {
    fits = fits && each * element_size(tensor.dtype()) % kAccessBytes == 0;
  }
  RTP_LLM_CHECK(fits || tensor.numel() == 0, what, " is ", tensor.describe(),
                "; expected rows that begin at multiples of 16 bytes and have as many");
}

}  // namespace

Prepared<AllReduceArgs, void> prepare(const AllReduceCall& call) {
  check_float_dtype(call.x, "all_reduce: x");
  check_contiguous(call.x, "all_reduce: x");
  check_access(call.x, {call.x.numel()}, "all_reduce: x");
  return {{buffers_of(call), call.x.data(), call.x.numel(), call.x.dtype()}};
}

Prepared<AllReduceAddRmsNormArgs, void> prepare(const AllReduceAddRmsNormCall& call) {
  check_float_dtype(call.x, "all_reduce_add_rms_norm: x");
  check_dtype(call.residual, call.x.dtype(), "all_reduce_add_rms_norm: residual");
  check_same_sizes(call.residual, call.x, "all_reduce_add_rms_norm: residual");
  const Rows rows = rows_of(call.x, "all_reduce_add_rms_norm: x");
  const Rows residual_rows = rows_of(call.residual, "all_reduce_add_rms_norm: residual");
  check_dtype(call.weight, call.x.dtype(), "all_reduce_add_rms_norm: weight");
  check_sizes(call.weight, {rows.size}, "all_reduce_add_rms_norm: weight");
  check_contiguous(call.weight, "all_reduce_add_rms_norm: weight");
  check_access(call.x, {rows.size, rows.stride}, "all_reduce_add_rms_norm: x");
  check_access(call.residual, {residual_rows.stride}, "all_reduce_add_rms_norm: residual");
  check_access(call.weight, {}, "all_reduce_add_rms_norm: weight");
  RTP_LLM_CHECK(call.x.data() != call.residual.data() || call.x.numel() == 0,
                "all_reduce_add_rms_norm: x and residual are the same memory");
  return {{buffers_of(call), call.x.data(), call.residual.data(), call.weight.data(), rows.count,
           rows.size, rows.stride, residual_rows.stride, call.x.dtype(),
           static_cast<float>(call.eps), static_cast<float>(call.norm_offset)}};
}

}  // namespace rtp_llm::glue
