// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/collective/all_reduce_checks.h"

#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"

namespace rtp_llm::glue {
namespace {

// The buffers of any of the operators. In two shots each rank sums a slice of the `items` (packs or
// rows), and a slice is in the buffers twice: as parts and as sums.
template <class Call>
RankBuffers buffers_of(const Call& call, int64_t items) {
  const RankBuffers buffers = rank_buffers(call);
  int64_t bytes = call.x.numel() * element_size(call.x.dtype());
  if (call.two_shot && bytes > 0) {
    const int64_t ranks = buffers.ranks, longest = (items + ranks - 1) / ranks;
    RTP_LLM_CHECK(ranks > 2 && items >= ranks, "all_reduce: two shots of ", items,
                  " packs or rows on ", ranks,
                  " ranks; expected three ranks or more, and one for each");
    RTP_LLM_CHECK(call.x.numel() <= INT32_MAX, "all_reduce: x is ", call.x.describe(),
                  "; expected at most 2^31 - 1 elements in two shots");
    bytes = 2 * longest * (bytes / items);
  }
  RTP_LLM_CHECK(bytes <= call.capacity, "all_reduce: x is ", call.x.describe(), ", which takes ",
                bytes, " bytes of a buffer; expected at most ", call.capacity, " bytes");
  return buffers;
}

// The arguments of either operator with a norm.
template <class Call>
AllReduceAddRmsNormArgs with_norm(const Call& call) {
  check_float_dtype(call.x, "all_reduce_add_rms_norm: x");
  check_dtype(call.residual, call.x.dtype(), "all_reduce_add_rms_norm: residual");
  check_same_sizes(call.residual, call.x, "all_reduce_add_rms_norm: residual");
  const Rows rows = rows_of(call.x, "all_reduce_add_rms_norm: x");
  const Rows residual_rows = rows_of(call.residual, "all_reduce_add_rms_norm: residual");
  check_dtype(call.weight, call.x.dtype(), "all_reduce_add_rms_norm: weight");
  check_sizes(call.weight, {rows.size}, "all_reduce_add_rms_norm: weight");
  check_contiguous(call.weight, "all_reduce_add_rms_norm: weight");
  check_packs(call.x, {rows.size, rows.stride}, "all_reduce_add_rms_norm: x");
  check_packs(call.residual, {residual_rows.stride}, "all_reduce_add_rms_norm: residual");
  check_packs(call.weight, {}, "all_reduce_add_rms_norm: weight");
  RTP_LLM_CHECK(call.x.data() != call.residual.data() || call.x.numel() == 0,
                "all_reduce_add_rms_norm: x and residual are the same memory");
  return {buffers_of(call, rows.count),
          call.x.data(),
          call.residual.data(),
          call.weight.data(),
          rows.count,
          rows.size,
          rows.stride,
          residual_rows.stride,
          call.x.dtype(),
          static_cast<float>(call.eps),
          static_cast<float>(call.norm_offset),
          call.two_shot};
}

}  // namespace

Prepared<AllReduceArgs, void> prepare(const AllReduceCall& call) {
  check_float_dtype(call.x, "all_reduce: x");
  check_contiguous(call.x, "all_reduce: x");
  check_packs(call.x, {call.x.numel()}, "all_reduce: x");
  const int64_t packs = call.x.numel() * element_size(call.x.dtype()) / kPackBytes;
  return {{buffers_of(call, packs), call.x.data(), call.x.numel(), call.x.dtype(), call.two_shot}};
}

Prepared<AllReduceAddRmsNormArgs, void> prepare(const AllReduceAddRmsNormCall& call) {
  return {with_norm(call)};
}

Prepared<AllReduceAddRmsNormFp8Args, std::tuple<Tensor, Tensor>> prepare(
    const AllReduceAddRmsNormFp8Call& call) {
  check_dim(call.x, 2, "all_reduce_add_rms_norm_fp8: x");
  const AllReduceAddRmsNormArgs norm = with_norm(call);
  RTP_LLM_CHECK(norm.size % kFp8Block == 0, "all_reduce_add_rms_norm_fp8: x is ", call.x.describe(),
                "; expected rows of a multiple of 128 elements");
  const int64_t scale_rows = fp8_scale_rows(norm.rows);
  const int64_t q_sizes[] = {norm.rows, norm.size};
  const int64_t scale_sizes[] = {norm.size / kFp8Block, scale_rows};
  Tensor q = empty(call.x, q_sizes, 2, DType::kFloat8E4m3fn);
  Tensor scales = empty(call.x, scale_sizes, 2, DType::kFloat32);
  return {{norm, q.data(), scales.data<float>(), scale_rows}, {std::move(q), std::move(scales)}};
}

}  // namespace rtp_llm::glue
