// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of scatter_fp8 and describes them to kernels.
#include "rtp_llm/kernels/common/fp8/fp8_scatter.h"

#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"

namespace rtp_llm::glue {
namespace {

// One for each expert of a token.
void check_entries(const Tensor& entries, int64_t tokens, int64_t top_k, const char* what) {
  check_dtype(entries, DType::kInt32, what);
  check_sizes(entries, {tokens, top_k}, what);
  check_contiguous(entries, what);
}

// Everything but the results.
Fp8ScatterArgs scatter_args(const Tensor& x, const Tensor& ids, const Tensor& places,
                            const Tensor& offsets, bool ragged) {
  check_float_dtype(x, "scatter_fp8: x");
  check_dim(x, 2, "scatter_fp8: x");
  check_contiguous(x, "scatter_fp8: x");
  check_dim(ids, 2, "scatter_fp8: ids");
  check_entries(ids, x.size(0), ids.size(1), "scatter_fp8: ids");
  check_entries(places, x.size(0), ids.size(1), "scatter_fp8: places");
  check_index(offsets, "scatter_fp8: offsets");
  RTP_LLM_CHECK(offsets.size(0) > 0 && x.size(1) > 0, "scatter_fp8: offsets is ",
                offsets.describe(), " and x is ", x.describe(), "; expected at least one entry");
  Fp8ScatterArgs args = {};
  args.x = x.data();
  args.ids = ids.data<int32_t>();
  args.places = places.data<int32_t>();
  args.offsets = offsets.data<int32_t>();
  args.tokens = x.size(0);
  args.top_k = ids.size(1);
  args.slots = offsets.size(0) - 1;
  args.hidden = x.size(1);
  args.columns = fp8_blocks(args.hidden) * kFp8Block;
  args.plane_rows = ragged ? fp8_ragged_rows(args.tokens * args.top_k, args.slots) : args.tokens;
  args.scale_rows = fp8_scale_rows(args.plane_rows);
  args.dtype = x.dtype();
  args.ragged = ragged;
  return args;
}

// The results are not yet filled.
struct Fp8Scatter {
  Fp8ScatterArgs args;
  Tensor q, scales, rows, starts, counts;
};

Fp8Scatter fp8_scatter(const Tensor& x, const Tensor& ids, const Tensor& places,
                       const Tensor& offsets, bool ragged) {
  Fp8ScatterArgs args = scatter_args(x, ids, places, offsets, ragged);
  const int64_t q_sizes[] = {args.slots, args.plane_rows, args.columns};
  const int64_t scale_sizes[] = {args.slots, args.columns / kFp8Block, args.scale_rows};
  const int64_t row_sizes[] = {args.tokens, args.top_k};
  const int64_t num_starts = ragged ? args.slots + 1 : 0;
  const int plane = ragged ? 1 : 0;  // where the sizes begin
  Tensor q = empty(x, q_sizes + plane, 3 - plane, DType::kFloat8E4m3fn);
  Tensor scales = empty(x, scale_sizes + plane, 3 - plane, DType::kFloat32);
  Tensor rows = empty(x, row_sizes, 2, DType::kInt32);
  Tensor starts = empty(x, &num_starts, 1, DType::kInt32);
  Tensor counts = empty(x, &args.slots, 1, DType::kInt32);
  args.q = q.data();
  args.scales = scales.data<float>();
  args.rows = rows.data<int32_t>();
  args.starts = starts.data<int32_t>();
  args.counts = counts.data<int32_t>();
  return {
      args, std::move(q), std::move(scales), std::move(rows), std::move(starts), std::move(counts)};
}

}  // namespace

Prepared<ScatterFp8Args, std::tuple<Tensor, Tensor, Tensor, Tensor>> prepare(
    const ScatterFp8Call& call) {
  Fp8Scatter x = fp8_scatter(call.x, call.ids, call.places, call.offsets, false);
  return {x.args, {std::move(x.q), std::move(x.scales), std::move(x.rows), std::move(x.counts)}};
}

Prepared<ScatterFp8RaggedArgs, std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>> prepare(
    const ScatterFp8RaggedCall& call) {
  Fp8Scatter x = fp8_scatter(call.x, call.ids, call.places, call.offsets, true);
  return {x.args,
          {std::move(x.q), std::move(x.scales), std::move(x.rows), std::move(x.starts),
           std::move(x.counts)}};
}

}  // namespace rtp_llm::glue
