#include "rtp_llm/kernels/common/sampling/sampling_checks.h"
#include "rtp_llm/kernels/xpu/launch.h"
#include "rtp_llm/kernels/xpu/on_queue.h"
#include "rtp_llm/kernels/xpu/sampling/sampling.h"

namespace rtp_llm::xpu {
namespace {

using glue::Tensor;

void check_vocab(const LogitRows& logits) {
  RTP_LLM_CHECK(logits.vocab <= kMostVocab, "the vocabulary has ", logits.vocab,
                " tokens; at most ", kMostVocab, " keep sums of weights exact");
}

std::tuple<Tensor, Tensor> sample_rows(const Tensor& logits, const Tensor& temperature,
                                       const Tensor& top_k, const Tensor& top_p,
                                       const Tensor& min_p, const Tensor& seeds,
                                       const Tensor& steps) {
  SampleArgs args = glue::sample_args(logits, {temperature, top_k, top_p, min_p, seeds, steps});
  check_vocab(args.logits);
  Tensor tokens = glue::empty(logits, {logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(logits, {logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  const OnQueue device(logits);
  sample(device.queue(), args);
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor, Tensor> top_logprobs_of(const Tensor& logits, const Tensor& tokens,
                                                   int64_t k) {
  TopLogprobsArgs args = glue::top_logprobs_args(logits, tokens, k);
  check_vocab(args.logits);
  Tensor chosen = glue::empty(logits, {logits.size(0)}, DType::kFloat32);
  Tensor values = glue::empty(logits, {logits.size(0), k}, DType::kFloat32);
  Tensor ids = glue::empty(logits, {logits.size(0), k}, DType::kInt32);
  args.chosen = chosen.data<float>();
  args.values = values.data<float>();
  args.ids = ids.data<int32_t>();
  const Tensor keys = glue::empty(logits, {logits.size(0), k}, DType::kInt64);
  const OnQueue device(logits);
  top_logprobs(device.queue(), {args, keys.data<uint64_t>()});
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

void penalize(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
              const Tensor& output_lens, const Tensor& repetition, const Tensor& presence,
              const Tensor& frequency) {
  const PenaltyArgs args =
      glue::penalty_args(logits, tokens, cu_tokens, output_lens, {repetition, presence, frequency});
  const int64_t rows = penalty_counts(logits.size(0));
  const Tensor counts = glue::empty(logits, {rows, logits.size(1)}, DType::kInt32);
  const OnQueue device(logits);
  fill_zero(device.queue(), counts.data(), counts.numel() * element_size(DType::kInt32));
  apply_penalties(device.queue(), {args, counts.data<int32_t>(), rows});
}

void ban_ngrams(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                const Tensor& ngram_size) {
  const NgramArgs args = glue::ngram_args(logits, tokens, cu_tokens, ngram_size);
  const OnQueue device(logits);
  ban_repeated_ngrams(device.queue(), args);
}

void add_bias(const Tensor& logits, const Tensor& rows, const Tensor& ids, const Tensor& values) {
  const LogitBiasArgs args = glue::logit_bias_args(logits, rows, ids, values);
  const OnQueue device(logits);
  add_logit_bias(device.queue(), args);
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) {
  glue::implement<sample_rows>(library, "sample");
  glue::implement<top_logprobs_of>(library, "top_logprobs");
  glue::implement<penalize>(library, "apply_penalties");
  glue::implement<ban_ngrams>(library, "ban_repeated_ngrams");
  glue::implement<add_bias>(library, "add_logit_bias");
}

}  // namespace rtp_llm::xpu
