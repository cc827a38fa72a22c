// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the sampling operators and describes them to kernels, for every device.
#include <algorithm>

#include "rtp_llm/kernels/common/sampling/calls.h"
#include "rtp_llm/kernels/common/sampling/rejection.h"
#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm::glue {
namespace {

// [rows, vocab], at least one column.
void check_logits(const Tensor& logits, const char* what) {
  check_dim(logits, 2, what);
  check_dtype(logits, DType::kFloat32, what);
  check_contiguous_rows(logits, what);
  RTP_LLM_CHECK(logits.size(1) > 0 && logits.size(1) <= INT32_MAX, what, " is ", logits.describe(),
                "; expected a vocabulary of at least one token");
}

void check_vector(const Tensor& vector, DType dtype, int64_t size, const char* what) {
  check_dtype(vector, dtype, what);
  check_sizes(vector, {size}, what);
  check_contiguous(vector, what);
}

LogitRows rows_of_logits(const Tensor& logits) {
  return {logits.data<float>(), logits.stride(0), logits.size(0), logits.size(1)};
}

MutableRows mutable_rows_of(const Tensor& logits) {
  return {logits.data<float>(), logits.stride(0), logits.size(0), logits.size(1)};
}

// What messages call logits, temperature, top_k, top_p, min_p, seeds and steps.
using SampleNames = const char* const[7];

constexpr SampleNames kSampleNames = {"sample: logits", "sample: temperature", "sample: top_k",
                                      "sample: top_p",  "sample: min_p",       "sample: seeds",
                                      "sample: steps"};
constexpr SampleNames kRejectionNames = {
    "rejection_sample: logits", "rejection_sample: temperature", "rejection_sample: top_k",
    "rejection_sample: top_p",  "rejection_sample: min_p",       "rejection_sample: seeds",
    "rejection_sample: steps"};

// What both calls have.
template <class Call>
SampleArgs args_of(const Call& call, const SampleNames& names) {
  check_logits(call.logits, names[0]);
  const int64_t rows = call.logits.size(0);
  check_vector(call.temperature, DType::kFloat32, rows, names[1]);
  check_vector(call.top_k, DType::kInt32, rows, names[2]);
  check_vector(call.top_p, DType::kFloat32, rows, names[3]);
  check_vector(call.min_p, DType::kFloat32, rows, names[4]);
  check_vector(call.seeds, DType::kInt64, rows, names[5]);
  check_vector(call.steps, DType::kInt64, rows, names[6]);
  return {rows_of_logits(call.logits),
          call.temperature.template data<float>(),
          call.top_k.template data<int32_t>(),
          call.top_p.template data<float>(),
          call.min_p.template data<float>(),
          call.seeds.template data<int64_t>(),
          call.steps.template data<int64_t>(),
          nullptr,
          nullptr};
}

// Tokens and status of a draw, which `args` gets the addresses of.
std::tuple<Tensor, Tensor> results_of(SampleArgs& args, const Tensor& logits) {
  Tensor tokens = empty(logits, {logits.size(0)}, DType::kInt32);
  Tensor status = empty(logits, {logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  return {std::move(tokens), std::move(status)};
}

TokenHistory history_of(const Tensor& tokens, const Tensor& cu_tokens, int64_t rows) {
  check_vector(tokens, DType::kInt32, tokens.numel(), "tokens");
  check_vector(cu_tokens, DType::kInt32, rows + 1, "cu_tokens");
  return {tokens.data<int32_t>(), cu_tokens.data<int32_t>(), tokens.numel()};
}

// What the host can check of the offsets of histories.
void check_offsets(const TokenHistory& history, int64_t rows) {
  const int32_t* const cu = history.cu_tokens;
  RTP_LLM_CHECK(cu[0] == 0 && std::is_sorted(cu, cu + rows + 1) && cu[rows] <= history.size,
                "cu_tokens must rise from 0 to at most the ", history.size, " tokens");
}

void check_rows(const int32_t* rows, int64_t size, const MutableRows& logits, const char* name) {
  for (int64_t i = 0; i < size; ++i) {
    RTP_LLM_CHECK(rows[i] >= 0 && rows[i] < logits.num_rows, name, ": rows[", i, "] is ", rows[i],
                  " of ", logits.num_rows, " rows");
  }
}

}  // namespace

Prepared<SampleArgs, std::tuple<Tensor, Tensor>> prepare(const SampleCall& call) {
  SampleArgs args = args_of(call, kSampleNames);
  auto results = results_of(args, call.logits);
  return {args, std::move(results)};
}

Prepared<RejectionSampleArgs, std::tuple<Tensor, Tensor>> prepare(const RejectionSampleCall& call) {
  SampleArgs sample = args_of(call, kRejectionNames);
  check_vector(call.drafts, DType::kInt32, call.logits.size(0), "rejection_sample: drafts");
  check_logits(call.draft_logits, "rejection_sample: draft_logits");
  const LogitRows drafted = rows_of_logits(call.draft_logits);
  RTP_LLM_CHECK(drafted.num_rows >= sample.logits.num_rows &&
                    (call.draft_columns ? drafted.vocab <= sample.logits.vocab
                                        : drafted.vocab == sample.logits.vocab),
                "rejection_sample: draft_logits is ", call.draft_logits.describe(), " for logits ",
                call.logits.describe(),
                "; expected as many rows or more, and as many columns, or fewer with "
                "draft_columns");
  const int32_t* columns = nullptr;
  if (call.draft_columns) {
    check_vector(*call.draft_columns, DType::kInt32, sample.logits.vocab,
                 "rejection_sample: draft_columns");
    columns = call.draft_columns->data<int32_t>();
  }
  auto results = results_of(sample, call.logits);
  return {{sample, call.drafts.data<int32_t>(), drafted, columns}, std::move(results)};
}

Prepared<TopLogprobsArgs, std::tuple<Tensor, Tensor, Tensor>> prepare(const TopLogprobsCall& call) {
  check_logits(call.logits, "top_logprobs: logits");
  check_vector(call.tokens, DType::kInt32, call.logits.size(0), "top_logprobs: tokens");
  RTP_LLM_CHECK(call.k >= 0 && call.k <= call.logits.size(1), "top_logprobs: k is ", call.k,
                "; expected 0 to the size of the vocabulary, ", call.logits.size(1));
  const int64_t rows = call.logits.size(0);
  Tensor chosen = empty(call.logits, {rows}, DType::kFloat32);
  Tensor values = empty(call.logits, {rows, call.k}, DType::kFloat32);
  Tensor ids = empty(call.logits, {rows, call.k}, DType::kInt32);
  return {{rows_of_logits(call.logits), call.tokens.data<int32_t>(), call.k, chosen.data<float>(),
           values.data<float>(), ids.data<int32_t>()},
          {std::move(chosen), std::move(values), std::move(ids)}};
}

Prepared<ApplyTokenBitmaskArgs, void> prepare(const ApplyTokenBitmaskCall& call) {
  check_logits(call.logits, "apply_token_bitmask: logits");
  const int64_t count = call.rows.numel();
  const int64_t words = (call.logits.size(1) + 31) / 32;
  check_vector(call.rows, DType::kInt32, count, "apply_token_bitmask: rows");
  check_dtype(call.masks, DType::kInt32, "apply_token_bitmask: masks");
  check_sizes(call.masks, {count, words}, "apply_token_bitmask: masks");
  check_contiguous(call.masks, "apply_token_bitmask: masks");
  const auto* const masks = reinterpret_cast<const uint32_t*>(call.masks.data<int32_t>());
  return {{mutable_rows_of(call.logits), masks, call.rows.data<int32_t>(), count}};
}

void check_indices(const ApplyTokenBitmaskArgs& args) {
  check_rows(args.rows, args.num_masks, args.logits, "apply_token_bitmask");
}

Prepared<ApplyPenaltiesArgs, void> prepare(const ApplyPenaltiesCall& call) {
  check_logits(call.logits, "apply_penalties: logits");
  const int64_t rows = call.logits.size(0);
  check_vector(call.output_lens, DType::kInt64, rows, "apply_penalties: output_lens");
  check_vector(call.repetition, DType::kFloat32, rows, "apply_penalties: repetition");
  check_vector(call.presence, DType::kFloat32, rows, "apply_penalties: presence");
  check_vector(call.frequency, DType::kFloat32, rows, "apply_penalties: frequency");
  return {{mutable_rows_of(call.logits), history_of(call.tokens, call.cu_tokens, rows),
           call.output_lens.data<int64_t>(), call.repetition.data<float>(),
           call.presence.data<float>(), call.frequency.data<float>()}};
}

void check_indices(const ApplyPenaltiesArgs& args) {
  check_offsets(args.history, args.logits.num_rows);
}

Prepared<BanRepeatedNgramsArgs, void> prepare(const BanRepeatedNgramsCall& call) {
  check_logits(call.logits, "ban_repeated_ngrams: logits");
  const int64_t rows = call.logits.size(0);
  check_vector(call.ngram_size, DType::kInt32, rows, "ban_repeated_ngrams: ngram_size");
  return {{mutable_rows_of(call.logits), history_of(call.tokens, call.cu_tokens, rows),
           call.ngram_size.data<int32_t>()}};
}

void check_indices(const BanRepeatedNgramsArgs& args) {
  check_offsets(args.history, args.logits.num_rows);
}

Prepared<AddLogitBiasArgs, void> prepare(const AddLogitBiasCall& call) {
  check_logits(call.logits, "add_logit_bias: logits");
  const int64_t size = call.ids.numel();
  check_vector(call.rows, DType::kInt32, size, "add_logit_bias: rows");
  check_vector(call.ids, DType::kInt32, size, "add_logit_bias: ids");
  check_vector(call.values, DType::kFloat32, size, "add_logit_bias: values");
  return {{mutable_rows_of(call.logits), call.rows.data<int32_t>(), call.ids.data<int32_t>(),
           call.values.data<float>(), size}};
}

void check_indices(const AddLogitBiasArgs& args) {
  check_rows(args.rows, args.size, args.logits, "add_logit_bias");
}

}  // namespace rtp_llm::glue
