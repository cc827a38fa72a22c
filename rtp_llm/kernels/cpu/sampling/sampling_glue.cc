#include "rtp_llm/kernels/common/sampling/sampling_checks.h"

#include <algorithm>
#include <cstring>

#include "rtp_llm/kernels/cpu/sampling/sampling.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

void check_offsets(const TokenHistory& history, int64_t rows) {
  const int32_t* const cu = history.cu_tokens;
  RTP_LLM_CHECK(cu[0] == 0 && std::is_sorted(cu, cu + rows + 1) && cu[rows] <= history.size,
                "cu_tokens must rise from 0 to at most the ", history.size, " tokens");
}

Tensor make_scratch(const Tensor& like, const LogitRows& logits, const ParallelFor& parallel) {
  const size_t bytes = sampling_scratch_bytes(logits, parallel.num_threads());
  return glue::empty(like, {static_cast<int64_t>(bytes)}, DType::kInt8);
}

std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperature,
                                  const Tensor& top_k, const Tensor& top_p, const Tensor& min_p,
                                  const Tensor& seeds, const Tensor& steps) {
  SampleArgs args = glue::sample_args(logits, {temperature, top_k, top_p, min_p, seeds, steps});
  Tensor tokens = glue::empty(logits, {logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(logits, {logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(logits, args.logits, parallel);
  run_sample(args, scratch.data(), parallel);
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor, Tensor> top_logprobs(const Tensor& logits, const Tensor& tokens,
                                                int64_t k) {
  TopLogprobsArgs args = glue::top_logprobs_args(logits, tokens, k);
  const int64_t rows = logits.size(0);
  Tensor chosen = glue::empty(logits, {rows}, DType::kFloat32);
  Tensor values = glue::empty(logits, {rows, k}, DType::kFloat32);
  Tensor ids = glue::empty(logits, {rows, k}, DType::kInt32);
  args.chosen = chosen.data<float>();
  args.values = values.data<float>();
  args.ids = ids.data<int32_t>();
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(logits, args.logits, parallel);
  run_top_logprobs(args, scratch.data(), parallel);
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

void apply_penalties(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                     const Tensor& output_lens, const Tensor& repetition, const Tensor& presence,
                     const Tensor& frequency) {
  const PenaltyArgs args =
      glue::penalty_args(logits, tokens, cu_tokens, output_lens, {repetition, presence, frequency});
  check_offsets(args.history, logits.size(0));
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor counts =
      glue::empty(logits, {parallel.num_threads(), logits.size(1)}, DType::kInt32);
  std::memset(counts.data(), 0, counts.numel() * sizeof(int32_t));
  run_penalties(args, counts.data<int32_t>(), parallel);
}

void ban_repeated_ngrams(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                         const Tensor& ngram_size) {
  const NgramArgs args = glue::ngram_args(logits, tokens, cu_tokens, ngram_size);
  check_offsets(args.history, logits.size(0));
  run_ngram_ban(args, glue::parallel_for());
}

void add_logit_bias(const Tensor& logits, const Tensor& rows, const Tensor& ids,
                    const Tensor& values) {
  const LogitBiasArgs args = glue::logit_bias_args(logits, rows, ids, values);
  for (int64_t i = 0; i < args.size; ++i) {
    RTP_LLM_CHECK(args.rows[i] >= 0 && args.rows[i] < logits.size(0), "add_logit_bias: rows[", i,
                  "] is ", args.rows[i], " of ", logits.size(0), " rows");
  }
  run_logit_bias(args);
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
