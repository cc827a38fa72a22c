// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/collective/token_exchange_checks.h"

namespace rtp_llm::glue {
namespace {

constexpr int64_t kWordsOfPack = 4;

// Expects contiguous int32 [rows, k]; returns k.
int check_ids(const Tensor& ids, int64_t rows, const char* what) {
  check_dtype(ids, DType::kInt32, what);
  check_dim(ids, 2, what);
  check_contiguous(ids, what);
  RTP_LLM_CHECK(ids.size(0) == rows, what, " is ", ids.describe(), "; expected ", rows, " rows");
  RTP_LLM_CHECK(ids.size(1) >= 1 && ids.size(1) <= kMaxChoices, what, " is ", ids.describe(),
                "; expected from 1 to ", kMaxChoices, " columns");
  return static_cast<int>(ids.size(1));
}

// Expects contiguous rows [N, H]; returns the packs in one row.
int64_t check_rows(const Tensor& x, const char* what) {
  check_float_dtype(x, what);
  check_dim(x, 2, what);
  check_contiguous(x, what);
  RTP_LLM_CHECK(x.size(1) >= 1, what, " is ", x.describe(), "; expected a column or more");
  check_packs(x, {x.size(1)}, what);
  return x.size(1) * element_size(x.dtype()) / kPackBytes;
}

int check_slots(int64_t slots, int64_t ranks, const char* what) {
  RTP_LLM_CHECK(slots >= 1 && slots * ranks <= INT32_MAX, what, " is ", slots,
                "; expected at least 1, and int32 numbers of experts");
  return static_cast<int>(slots);
}

void check_message(int64_t packs, const RankBuffers& buffers, const char* what) {
  RTP_LLM_CHECK(packs * kPackBytes <= buffers.capacity, what, " sends ", packs * kPackBytes,
                " bytes to each rank; expected at most ", buffers.capacity);
}

}  // namespace

Prepared<DispatchTokensArgs, DispatchTokensCall::Result> prepare(const DispatchTokensCall& call) {
  const int64_t row_packs = check_rows(call.x, "dispatch_tokens: x");
  const int64_t tokens = call.x.size(0);
  const int k = check_ids(call.ids, tokens, "dispatch_tokens: ids");
  check_dtype(call.weights, DType::kFloat32, "dispatch_tokens: weights");
  check_same_sizes(call.weights, call.ids, "dispatch_tokens: weights");
  check_contiguous(call.weights, "dispatch_tokens: weights");
  const RankBuffers buffers = rank_buffers(call);
  const int slots = check_slots(call.slots, buffers.ranks, "dispatch_tokens: slots");
  RTP_LLM_CHECK(call.rows >= 1 && tokens <= call.rows, "dispatch_tokens: x is ", call.x.describe(),
                " and rows ", call.rows, "; expected at most as many tokens, and one row or more");
  const int64_t of_choices = 2 * ((k + kWordsOfPack - 1) / kWordsOfPack);
  check_message(call.rows * (of_choices + row_packs), buffers, "dispatch_tokens");
  const int64_t there = buffers.ranks * call.rows;
  auto x = empty(call.x, {there, call.x.size(1)}, call.x.dtype());
  auto ids = empty(call.ids, {there, k}, DType::kInt32);
  auto weights = empty(call.weights, {there, k}, DType::kFloat32);
  const DispatchTokensArgs args = {buffers,
                                   call.x.data(),
                                   call.ids.data<int32_t>(),
                                   call.weights.data<float>(),
                                   x.data(),
                                   ids.data<int32_t>(),
                                   weights.data<float>(),
                                   tokens,
                                   call.rows,
                                   row_packs,
                                   k,
                                   slots};
  return {args, {std::move(x), std::move(ids), std::move(weights)}};
}

Prepared<CombineTokensArgs, Tensor> prepare(const CombineTokensCall& call) {
  const int64_t row_packs = check_rows(call.results, "combine_tokens: results");
  const RankBuffers buffers = rank_buffers(call);
  const int64_t there = call.results.size(0), rows = there / buffers.ranks;
  RTP_LLM_CHECK(rows >= 1 && there % buffers.ranks == 0, "combine_tokens: results is ",
                call.results.describe(), "; expected as many rows of each of ", buffers.ranks,
                " ranks");
  const int64_t tokens = call.ids.size(0);
  const int k = check_ids(call.ids, tokens, "combine_tokens: ids");
  RTP_LLM_CHECK(tokens <= rows, "combine_tokens: ids is ", call.ids.describe(),
                "; expected at most ", rows, " tokens");
  const int of_others = check_ids(call.ids_there, there, "combine_tokens: ids_there");
  RTP_LLM_CHECK(of_others == k, "combine_tokens: ids_there is ", call.ids_there.describe(),
                "; expected ", k, " columns");
  const int slots = check_slots(call.slots, buffers.ranks, "combine_tokens: slots");
  check_message(1 + rows * row_packs, buffers, "combine_tokens");
  auto out = empty(call.results, {tokens, call.results.size(1)}, call.results.dtype());
  const CombineTokensArgs args = {buffers,
                                  call.results.data(),
                                  call.ids_there.data<int32_t>(),
                                  call.ids.data<int32_t>(),
                                  out.data(),
                                  tokens,
                                  rows,
                                  row_packs,
                                  k,
                                  slots,
                                  call.results.dtype()};
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
