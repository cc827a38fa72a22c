// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/speculative/ngram_checks.h"

namespace rtp_llm::glue {
namespace {

// What messages call history, lens, outputs and cu_rows.
using Names = const char* const[4];

constexpr Names kMatchNames = {"match_ngrams: history", "match_ngrams: lens",
                               "match_ngrams: outputs", "match_ngrams: cu_rows"};
constexpr Names kAppendNames = {"append_accepted: history", "append_accepted: lens",
                                "append_accepted: outputs", "append_accepted: cu_rows"};

int32_t* index_of(const Tensor& index, int64_t size, const char* what) {
  check_index(index, what);
  check_sizes(index, {size}, what);
  return index.data<int32_t>();
}

// What both calls have.
template <class Args, class Call>
void take_histories(Args& args, const Call& call, int64_t num_rows, const Names& names) {
  check_dim(call.history, 2, names[0]);
  check_dtype(call.history, DType::kInt32, names[0]);
  check_contiguous_rows(call.history, names[0]);
  RTP_LLM_CHECK(call.history.size(1) <= INT32_MAX, names[0], " is ", call.history.describe(),
                "; expected rows of at most 2147483647 tokens");
  args.num_histories = call.history.size(0);
  args.capacity = call.history.size(1);
  args.stride = call.history.stride(0);
  args.history = call.history.template data<int32_t>();
  args.lens = index_of(call.lens, args.num_histories, names[1]);
  check_index(call.outputs, names[2]);
  const int64_t outputs = call.outputs.size(0);
  args.rows = {call.outputs.template data<int32_t>(), index_of(call.cu_rows, outputs + 1, names[3]),
               outputs, num_rows};
}

}  // namespace

Prepared<MatchNgramsArgs, void> prepare(const MatchNgramsCall& call) {
  check_index(call.drafts, "match_ngrams: drafts");
  MatchNgramsArgs args = {};
  take_histories(args, call, call.drafts.size(0), kMatchNames);
  args.drafts = call.drafts.data<int32_t>();
  RTP_LLM_CHECK(call.min_n >= 1 && call.min_n <= call.max_n && call.max_n <= INT32_MAX,
                "match_ngrams: n-grams of ", call.min_n, " to ", call.max_n,
                " tokens; expected 1 <= min_n <= max_n");
  args.min_n = call.min_n;
  args.max_n = call.max_n;
  return {args};
}

Prepared<AppendAcceptedArgs, void> prepare(const AppendAcceptedCall& call) {
  check_index(call.tokens, "append_accepted: tokens");
  AppendAcceptedArgs args = {};
  const int64_t num_rows = call.tokens.size(0);
  take_histories(args, call, num_rows, kAppendNames);
  args.tokens = call.tokens.data<int32_t>();
  args.drafts = index_of(call.drafts, num_rows, "append_accepted: drafts");
  return {args};
}

}  // namespace rtp_llm::glue
