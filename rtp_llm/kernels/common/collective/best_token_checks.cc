// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/collective/best_token_checks.h"

namespace rtp_llm::glue {

Prepared<BestTokenArgs, void> prepare(const BestTokenCall& call) {
  check_dtype(call.logits, DType::kFloat32, "best_token: logits");
  check_dim(call.logits, 2, "best_token: logits");
  check_contiguous_rows(call.logits, "best_token: logits");
  const int64_t rows = call.logits.size(0), columns = call.logits.size(1);
  check_dtype(call.tokens, DType::kInt32, "best_token: tokens");
  check_sizes(call.tokens, {rows}, "best_token: tokens");
  check_contiguous(call.tokens, "best_token: tokens");
  check_dtype(call.status, DType::kInt8, "best_token: status");
  check_sizes(call.status, {rows}, "best_token: status");
  check_contiguous(call.status, "best_token: status");
  RTP_LLM_CHECK(call.first >= 0 && call.first + columns <= INT32_MAX, "best_token: first is ",
                call.first, " for ", columns, " columns");
  const RankBuffers buffers = rank_buffers(call);
  RTP_LLM_CHECK(rows * kPackBytes <= call.capacity, "best_token: ", rows,
                " rows; expected at most ", call.capacity / kPackBytes);
  return {{buffers, call.logits.data<float>(), call.tokens.data<int32_t>(),
           call.status.data<int8_t>(), rows, call.logits.stride(0),
           static_cast<int32_t>(call.first)}};
}

}  // namespace rtp_llm::glue
