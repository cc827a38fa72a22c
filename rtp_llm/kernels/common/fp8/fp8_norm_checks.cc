// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of a norm with a block-scaled FP8 result and describes them to kernels.
#include "rtp_llm/kernels/common/fp8/fp8_norm.h"

#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"

namespace rtp_llm::glue {
namespace {

constexpr int64_t kAccessElements = 4, kAccessBytes = 16;

// Kernels read four elements of a row at once.
void check_access(const Tensor& x, int64_t stride, const char* what) {
  const bool begins_well = reinterpret_cast<uintptr_t>(x.data()) % kAccessBytes == 0;
  RTP_LLM_CHECK(begins_well && stride % kAccessElements == 0, what, " is ", x.describe(),
                "; expected rows that begin at multiples of 4 elements, the first at 16 bytes");
}

// What is added to the residual before the norm.
void take_pending(NormFp8Args& args, const OptionalTensor& pending, const Tensor& residual) {
  if (!pending.has_value()) return;
  check_dtype(*pending, residual.dtype(), "norm_fp8: pending");
  check_same_sizes(*pending, residual, "norm_fp8: pending");
  args.pending = pending->data();
  args.pending_stride = rows_of(*pending, "norm_fp8: pending").stride;
  check_access(*pending, args.pending_stride, "norm_fp8: pending");
  RTP_LLM_CHECK(pending->data() != residual.data() || residual.numel() == 0,
                "norm_fp8: pending and residual are the same memory");
}

}  // namespace

Prepared<NormFp8Args, std::tuple<Tensor, Tensor>> prepare(const NormFp8Call& call) {
  const Tensor& residual = call.residual;
  const Tensor& weight = call.weight;
  check_float_dtype(residual, "norm_fp8: residual");
  check_dim(residual, 2, "norm_fp8: residual");
  const Rows rows = rows_of(residual, "norm_fp8: residual");
  RTP_LLM_CHECK(rows.size > 0 && rows.size % kFp8Block == 0 && rows.size <= kMaxFp8NormChannels,
                "norm_fp8: residual is ", residual.describe(),
                "; expected rows of a multiple of 128 elements, at most ", kMaxFp8NormChannels);
  check_dtype(weight, residual.dtype(), "norm_fp8: weight");
  check_sizes(weight, {rows.size}, "norm_fp8: weight");
  check_contiguous(weight, "norm_fp8: weight");
  check_access(weight, 0, "norm_fp8: weight");
  check_access(residual, rows.stride, "norm_fp8: residual");
  NormFp8Args args = {};
  take_pending(args, call.pending, residual);
  args.residual = residual.data();
  args.weight = weight.data();
  args.rows = rows.count;
  args.scale_rows = fp8_scale_rows(rows.count);
  args.size = rows.size;
  args.residual_stride = rows.stride;
  args.dtype = residual.dtype();
  args.eps = static_cast<float>(call.eps);
  args.offset = static_cast<float>(call.norm_offset);
  const int64_t q_sizes[] = {rows.count, rows.size};
  const int64_t scale_sizes[] = {rows.size / kFp8Block, args.scale_rows};
  Tensor q = empty(residual, q_sizes, 2, DType::kFloat8E4m3fn);
  Tensor scales = empty(residual, scale_sizes, 2, DType::kFloat32);
  args.q = q.data();
  args.scales = scales.data<float>();
  return {args, {std::move(q), std::move(scales)}};
}

}  // namespace rtp_llm::glue
