#include "rtp_llm/kernels/common/sampling/sampling_checks.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

std::tuple<Tensor, Tensor> sample_tokens(const Tensor& logits, const Tensor& temperature,
                                         const Tensor& top_k, const Tensor& top_p,
                                         const Tensor& min_p, const Tensor& seeds,
                                         const Tensor& steps) {
  SampleArgs args = glue::sample_args(logits, {temperature, top_k, top_p, min_p, seeds, steps});
  Tensor tokens = glue::empty(logits, {logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(logits, {logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  const OnDevice device(logits);
  sample(args, device.stream());
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor, Tensor> logprobs(const Tensor& logits, const Tensor& tokens, int64_t k) {
  TopLogprobsArgs args = glue::top_logprobs_args(logits, tokens, k);
  const int64_t rows = logits.size(0);
  Tensor chosen = glue::empty(logits, {rows}, DType::kFloat32);
  Tensor values = glue::empty(logits, {rows, k}, DType::kFloat32);
  Tensor ids = glue::empty(logits, {rows, k}, DType::kInt32);
  const Tensor scratch = glue::empty(logits, {rows, top_logprobs_words(k)}, DType::kInt64);
  args.chosen = chosen.data<float>();
  args.values = values.data<float>();
  args.ids = ids.data<int32_t>();
  const OnDevice device(logits);
  top_logprobs(args, scratch.data(), device.stream());
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

void penalties(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
               const Tensor& output_lens, const Tensor& repetition, const Tensor& presence,
               const Tensor& frequency) {
  const PenaltyArgs args =
      glue::penalty_args(logits, tokens, cu_tokens, output_lens, {repetition, presence, frequency});
  const Tensor counts = glue::empty(logits, {logits.size(0), logits.size(1)}, DType::kInt32);
  const OnDevice device(logits);
  apply_penalties(args, counts.data<int32_t>(), device.stream());
}

void ngrams(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
            const Tensor& ngram_size) {
  const NgramArgs args = glue::ngram_args(logits, tokens, cu_tokens, ngram_size);
  const OnDevice device(logits);
  ban_repeated_ngrams(args, device.stream());
}

void logit_bias(const Tensor& logits, const Tensor& rows, const Tensor& ids, const Tensor& values) {
  const LogitBiasArgs args = glue::logit_bias_args(logits, rows, ids, values);
  const OnDevice device(logits);
  add_logit_bias(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<sample_tokens>(library, "sample");
  glue::implement<logprobs>(library, "top_logprobs");
  glue::implement<penalties>(library, "apply_penalties");
  glue::implement<ngrams>(library, "ban_repeated_ngrams");
  glue::implement<logit_bias>(library, "add_logit_bias");
}

}  // namespace rtp_llm::cuda
