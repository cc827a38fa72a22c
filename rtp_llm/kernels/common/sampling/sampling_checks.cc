// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/sampling/sampling_checks.h"

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

// Of logits, temperature, top_k, top_p, min_p, seeds, steps in messages.
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

TokenHistory history_of(const Tensor& tokens, const Tensor& cu_tokens, int64_t rows) {
  check_vector(tokens, DType::kInt32, tokens.numel(), "tokens");
  check_vector(cu_tokens, DType::kInt32, rows + 1, "cu_tokens");
  return {tokens.data<int32_t>(), cu_tokens.data<int32_t>(), tokens.numel()};
}

}  // namespace

SampleArgs sample_args(const SampleCall& call) { return args_of(call, kSampleNames); }

RejectionSampleArgs rejection_sample_args(const RejectionSampleCall& call) {
  const SampleArgs sample = args_of(call, kRejectionNames);
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
  return {sample, call.drafts.data<int32_t>(), drafted, columns};
}

TopLogprobsArgs top_logprobs_args(const TopLogprobsCall& call) {
  check_logits(call.logits, "top_logprobs: logits");
  check_vector(call.tokens, DType::kInt32, call.logits.size(0), "top_logprobs: tokens");
  RTP_LLM_CHECK(call.k >= 0 && call.k <= call.logits.size(1), "top_logprobs: k is ", call.k,
                "; expected 0 to the size of the vocabulary, ", call.logits.size(1));
  return {
      rows_of_logits(call.logits), call.tokens.data<int32_t>(), call.k, nullptr, nullptr, nullptr};
}

BitmaskArgs bitmask_args(const ApplyTokenBitmaskCall& call) {
  check_logits(call.logits, "apply_token_bitmask: logits");
  const int64_t count = call.rows.numel();
  const int64_t words = (call.logits.size(1) + 31) / 32;
  check_vector(call.rows, DType::kInt32, count, "apply_token_bitmask: rows");
  check_dtype(call.masks, DType::kInt32, "apply_token_bitmask: masks");
  check_sizes(call.masks, {count, words}, "apply_token_bitmask: masks");
  check_contiguous(call.masks, "apply_token_bitmask: masks");
  const auto* const masks = reinterpret_cast<const uint32_t*>(call.masks.data<int32_t>());
  return {mutable_rows_of(call.logits), masks, call.rows.data<int32_t>(), count};
}

PenaltyArgs penalty_args(const ApplyPenaltiesCall& call) {
  check_logits(call.logits, "apply_penalties: logits");
  const int64_t rows = call.logits.size(0);
  check_vector(call.output_lens, DType::kInt64, rows, "apply_penalties: output_lens");
  check_vector(call.repetition, DType::kFloat32, rows, "apply_penalties: repetition");
  check_vector(call.presence, DType::kFloat32, rows, "apply_penalties: presence");
  check_vector(call.frequency, DType::kFloat32, rows, "apply_penalties: frequency");
  return {mutable_rows_of(call.logits),     history_of(call.tokens, call.cu_tokens, rows),
          call.output_lens.data<int64_t>(), call.repetition.data<float>(),
          call.presence.data<float>(),      call.frequency.data<float>()};
}

NgramArgs ngram_args(const BanRepeatedNgramsCall& call) {
  check_logits(call.logits, "ban_repeated_ngrams: logits");
  const int64_t rows = call.logits.size(0);
  check_vector(call.ngram_size, DType::kInt32, rows, "ban_repeated_ngrams: ngram_size");
  return {mutable_rows_of(call.logits), history_of(call.tokens, call.cu_tokens, rows),
          call.ngram_size.data<int32_t>()};
}

LogitBiasArgs logit_bias_args(const AddLogitBiasCall& call) {
  check_logits(call.logits, "add_logit_bias: logits");
  const int64_t size = call.ids.numel();
  check_vector(call.rows, DType::kInt32, size, "add_logit_bias: rows");
  check_vector(call.ids, DType::kInt32, size, "add_logit_bias: ids");
  check_vector(call.values, DType::kFloat32, size, "add_logit_bias: values");
  return {mutable_rows_of(call.logits), call.rows.data<int32_t>(), call.ids.data<int32_t>(),
          call.values.data<float>(), size};
}

}  // namespace rtp_llm::glue
