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

SampleArgs sample_args(const Tensor& logits, const SampleSettings& settings) {
  check_logits(logits, "sample: logits");
  const int64_t rows = logits.size(0);
  check_vector(settings.temperature, DType::kFloat32, rows, "sample: temperature");
  check_vector(settings.top_k, DType::kInt32, rows, "sample: top_k");
  check_vector(settings.top_p, DType::kFloat32, rows, "sample: top_p");
  check_vector(settings.min_p, DType::kFloat32, rows, "sample: min_p");
  check_vector(settings.seeds, DType::kInt64, rows, "sample: seeds");
  check_vector(settings.steps, DType::kInt64, rows, "sample: steps");
  return {rows_of_logits(logits),
          settings.temperature.data<float>(),
          settings.top_k.data<int32_t>(),
          settings.top_p.data<float>(),
          settings.min_p.data<float>(),
          settings.seeds.data<int64_t>(),
          settings.steps.data<int64_t>(),
          nullptr,
          nullptr};
}

TopLogprobsArgs top_logprobs_args(const Tensor& logits, const Tensor& tokens, int64_t k) {
  check_logits(logits, "top_logprobs: logits");
  check_vector(tokens, DType::kInt32, logits.size(0), "top_logprobs: tokens");
  RTP_LLM_CHECK(k >= 0 && k <= logits.size(1), "top_logprobs: k is ", k,
                "; expected 0 to the size of the vocabulary, ", logits.size(1));
  return {rows_of_logits(logits), tokens.data<int32_t>(), k, nullptr, nullptr, nullptr};
}

PenaltyArgs penalty_args(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                         const Tensor& output_lens, const Penalties& penalties) {
  check_logits(logits, "apply_penalties: logits");
  const int64_t rows = logits.size(0);
  check_vector(output_lens, DType::kInt64, rows, "apply_penalties: output_lens");
  check_vector(penalties.repetition, DType::kFloat32, rows, "apply_penalties: repetition");
  check_vector(penalties.presence, DType::kFloat32, rows, "apply_penalties: presence");
  check_vector(penalties.frequency, DType::kFloat32, rows, "apply_penalties: frequency");
  return {mutable_rows_of(logits),          history_of(tokens, cu_tokens, rows),
          output_lens.data<int64_t>(),      penalties.repetition.data<float>(),
          penalties.presence.data<float>(), penalties.frequency.data<float>()};
}

NgramArgs ngram_args(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                     const Tensor& ngram_size) {
  check_logits(logits, "ban_repeated_ngrams: logits");
  const int64_t rows = logits.size(0);
  check_vector(ngram_size, DType::kInt32, rows, "ban_repeated_ngrams: ngram_size");
  return {mutable_rows_of(logits), history_of(tokens, cu_tokens, rows), ngram_size.data<int32_t>()};
}

LogitBiasArgs logit_bias_args(const Tensor& logits, const Tensor& rows, const Tensor& ids,
                              const Tensor& values) {
  check_logits(logits, "add_logit_bias: logits");
  const int64_t size = ids.numel();
  check_vector(rows, DType::kInt32, size, "add_logit_bias: rows");
  check_vector(ids, DType::kInt32, size, "add_logit_bias: ids");
  check_vector(values, DType::kFloat32, size, "add_logit_bias: values");
  return {mutable_rows_of(logits), rows.data<int32_t>(), ids.data<int32_t>(), values.data<float>(),
          size};
}

}  // namespace rtp_llm::glue
