#include "rtp_llm/kernels/cpu/sampling.h"

#include <algorithm>
#include <cstring>

#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

// [rows, vocab], at least one column.
void check_logits(const Tensor& logits, const char* what) {
  glue::check_dim(logits, 2, what);
  glue::check_dtype(logits, DType::kFloat32, what);
  glue::check_contiguous_rows(logits, what);
  RTP_LLM_CHECK(logits.size(1) > 0 && logits.size(1) <= INT32_MAX, what, " is ", logits.describe(),
                "; expected a vocabulary of at least one token");
}

void check_vector(const Tensor& vector, DType dtype, int64_t size, const char* what) {
  glue::check_dtype(vector, dtype, what);
  glue::check_sizes(vector, {size}, what);
  glue::check_contiguous(vector, what);
}

LogitRows rows_of(const Tensor& logits) {
  return {logits.data<float>(), logits.stride(0), logits.size(0), logits.size(1)};
}

MutableRows mutable_rows_of(const Tensor& logits) {
  return {logits.data<float>(), logits.stride(0), logits.size(0), logits.size(1)};
}

TokenHistory history_of(const Tensor& tokens, const Tensor& cu_tokens, int64_t rows) {
  check_vector(tokens, DType::kInt32, tokens.numel(), "tokens");
  check_vector(cu_tokens, DType::kInt32, rows + 1, "cu_tokens");
  const int32_t* const cu = cu_tokens.data<int32_t>();
  RTP_LLM_CHECK(cu[0] == 0 && std::is_sorted(cu, cu + rows + 1) && cu[rows] <= tokens.numel(),
                "cu_tokens must rise from 0 to at most the ", tokens.numel(), " tokens");
  return {tokens.data<int32_t>(), cu};
}

Tensor make_scratch(const Tensor& logits, const ParallelFor& parallel) {
  const size_t bytes = sampling_scratch_bytes(rows_of(logits), parallel.num_threads());
  return glue::empty(logits, {static_cast<int64_t>(bytes)}, DType::kInt8);
}

std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperature,
                                  const Tensor& top_k, const Tensor& top_p, const Tensor& min_p,
                                  const Tensor& seeds, const Tensor& steps) {
  check_logits(logits, "sample: logits");
  const int64_t rows = logits.size(0);
  check_vector(temperature, DType::kFloat32, rows, "sample: temperature");
  check_vector(top_k, DType::kInt32, rows, "sample: top_k");
  check_vector(top_p, DType::kFloat32, rows, "sample: top_p");
  check_vector(min_p, DType::kFloat32, rows, "sample: min_p");
  check_vector(seeds, DType::kInt64, rows, "sample: seeds");
  check_vector(steps, DType::kInt64, rows, "sample: steps");
  Tensor tokens = glue::empty(logits, {rows}, DType::kInt32);
  Tensor ok = glue::empty(logits, {rows}, DType::kBool);
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(logits, parallel);
  run_sample({rows_of(logits), temperature.data<float>(), top_k.data<int32_t>(),
              top_p.data<float>(), min_p.data<float>(), seeds.data<int64_t>(),
              steps.data<int64_t>(), tokens.data<int32_t>(), ok.data<bool>()},
             scratch.data(), parallel);
  return std::make_tuple(std::move(tokens), std::move(ok));
}

std::tuple<Tensor, Tensor, Tensor> top_logprobs(const Tensor& logits, const Tensor& tokens,
                                                int64_t k) {
  check_logits(logits, "top_logprobs: logits");
  const int64_t rows = logits.size(0);
  check_vector(tokens, DType::kInt32, rows, "top_logprobs: tokens");
  RTP_LLM_CHECK(k >= 0 && k <= logits.size(1), "top_logprobs: k is ", k,
                "; expected 0 to the size of the vocabulary, ", logits.size(1));
  Tensor chosen = glue::empty(logits, {rows}, DType::kFloat32);
  Tensor values = glue::empty(logits, {rows, k}, DType::kFloat32);
  Tensor ids = glue::empty(logits, {rows, k}, DType::kInt32);
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(logits, parallel);
  run_top_logprobs({rows_of(logits), tokens.data<int32_t>(), k, chosen.data<float>(),
                    values.data<float>(), ids.data<int32_t>()},
                   scratch.data(), parallel);
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

void apply_penalties(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                     const Tensor& repetition, const Tensor& presence, const Tensor& frequency) {
  check_logits(logits, "apply_penalties: logits");
  const int64_t rows = logits.size(0);
  check_vector(repetition, DType::kFloat32, rows, "apply_penalties: repetition");
  check_vector(presence, DType::kFloat32, rows, "apply_penalties: presence");
  check_vector(frequency, DType::kFloat32, rows, "apply_penalties: frequency");
  const TokenHistory history = history_of(tokens, cu_tokens, rows);
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor counts =
      glue::empty(logits, {parallel.num_threads(), logits.size(1)}, DType::kInt32);
  std::memset(counts.data(), 0, counts.numel() * sizeof(int32_t));
  run_penalties({mutable_rows_of(logits), history, repetition.data<float>(), presence.data<float>(),
                 frequency.data<float>()},
                counts.data<int32_t>(), parallel);
}

void ban_repeated_ngrams(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                         const Tensor& ngram_size) {
  check_logits(logits, "ban_repeated_ngrams: logits");
  const int64_t rows = logits.size(0);
  check_vector(ngram_size, DType::kInt32, rows, "ban_repeated_ngrams: ngram_size");
  const TokenHistory history = history_of(tokens, cu_tokens, rows);
  run_ngram_ban({mutable_rows_of(logits), history, ngram_size.data<int32_t>()},
                glue::parallel_for());
}

void add_logit_bias(const Tensor& logits, const Tensor& rows, const Tensor& ids,
                    const Tensor& values) {
  check_logits(logits, "add_logit_bias: logits");
  const int64_t size = ids.numel();
  check_vector(rows, DType::kInt32, size, "add_logit_bias: rows");
  check_vector(ids, DType::kInt32, size, "add_logit_bias: ids");
  check_vector(values, DType::kFloat32, size, "add_logit_bias: values");
  const int32_t* const row = rows.data<int32_t>();
  for (int64_t i = 0; i < size; ++i) {
    RTP_LLM_CHECK(row[i] >= 0 && row[i] < logits.size(0), "add_logit_bias: rows[", i, "] is ",
                  row[i], " of ", logits.size(0), " rows");
  }
  run_logit_bias({mutable_rows_of(logits), row, ids.data<int32_t>(), values.data<float>(), size});
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<sample>(library, "sample");
  glue::implement<top_logprobs>(library, "top_logprobs");
  glue::implement<apply_penalties>(library, "apply_penalties");
  glue::implement<ban_repeated_ngrams>(library, "ban_repeated_ngrams");
  glue::implement<add_logit_bias>(library, "add_logit_bias");
}

}  // namespace rtp_llm::cpu
