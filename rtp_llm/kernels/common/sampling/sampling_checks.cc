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

TokenHistory history_of(const Tensor& tokens, const Tensor& cu_tokens, int64_t rows) {
  check_vector(tokens, DType::kInt32, tokens.numel(), "tokens");
  check_vector(cu_tokens, DType::kInt32, rows + 1, "cu_tokens");
  return {tokens.data<int32_t>(), cu_tokens.data<int32_t>(), tokens.numel()};
}

}  // namespace

SampleArgs sample_args(const SampleCall& call) {
  check_logits(call.logits, "sample: logits");
  const int64_t rows = call.logits.size(0);
  check_vector(call.temperature, DType::kFloat32, rows, "sample: temperature");
  check_vector(call.top_k, DType::kInt32, rows, "sample: top_k");
  check_vector(call.top_p, DType::kFloat32, rows, "sample: top_p");
  check_vector(call.min_p, DType::kFloat32, rows, "sample: min_p");
  check_vector(call.seeds, DType::kInt64, rows, "sample: seeds");
  check_vector(call.steps, DType::kInt64, rows, "sample: steps");
  return {rows_of_logits(call.logits),
          call.temperature.data<float>(),
          call.top_k.data<int32_t>(),
          call.top_p.data<float>(),
          call.min_p.data<float>(),
          call.seeds.data<int64_t>(),
          call.steps.data<int64_t>(),
          nullptr,
          nullptr};
}

TopLogprobsArgs top_logprobs_args(const TopLogprobsCall& call) {
  check_logits(call.logits, "top_logprobs: logits");
  check_vector(call.tokens, DType::kInt32, call.logits.size(0), "top_logprobs: tokens");
  RTP_LLM_CHECK(call.k >= 0 && call.k <= call.logits.size(1), "top_logprobs: k is ", call.k,
                "; expected 0 to the size of the vocabulary, ", call.logits.size(1));
  return {
      rows_of_logits(call.logits), call.tokens.data<int32_t>(), call.k, nullptr, nullptr, nullptr};
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
