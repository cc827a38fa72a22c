// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/sampling/calls.h"
#include "rtp_llm/kernels/common/sampling/sampling_checks.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/sampling/sampling.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

std::tuple<Tensor, Tensor> sample_tokens(const glue::SampleCall& call) {
  SampleArgs args = glue::sample_args(call);
  Tensor tokens = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  const OnDevice device(call.logits);
  sample(args, device.stream());
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor> verify_drafts(const glue::RejectionSampleCall& call) {
  RejectionSampleArgs args = glue::rejection_sample_args(call);
  const int64_t rows = call.logits.size(0);
  Tensor tokens = glue::empty(call.logits, {rows}, DType::kInt32);
  Tensor status = glue::empty(call.logits, {rows}, DType::kInt8);
  const Tensor scratch = glue::empty(call.logits, {rejection_sample_bytes(rows)}, DType::kInt8);
  args.sample.tokens = tokens.data<int32_t>();
  args.sample.status = status.data<int8_t>();
  const OnDevice device(call.logits);
  rejection_sample(args, scratch.data(), device.stream());
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor, Tensor> logprobs(const glue::TopLogprobsCall& call) {
  TopLogprobsArgs args = glue::top_logprobs_args(call);
  const int64_t rows = call.logits.size(0);
  Tensor chosen = glue::empty(call.logits, {rows}, DType::kFloat32);
  Tensor values = glue::empty(call.logits, {rows, call.k}, DType::kFloat32);
  Tensor ids = glue::empty(call.logits, {rows, call.k}, DType::kInt32);
  const Tensor scratch =
      glue::empty(call.logits, {rows, top_logprobs_words(call.k)}, DType::kInt64);
  args.chosen = chosen.data<float>();
  args.values = values.data<float>();
  args.ids = ids.data<int32_t>();
  const OnDevice device(call.logits);
  top_logprobs(args, scratch.data(), device.stream());
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

void bitmask(const glue::ApplyTokenBitmaskCall& call) {
  const BitmaskArgs args = glue::bitmask_args(call);
  const OnDevice device(call.logits);
  apply_token_bitmask(args, device.stream());
}

void penalties(const glue::ApplyPenaltiesCall& call) {
  const PenaltyArgs args = glue::penalty_args(call);
  const Tensor counts =
      glue::empty(call.logits, {call.logits.size(0), call.logits.size(1)}, DType::kInt32);
  const OnDevice device(call.logits);
  apply_penalties(args, counts.data<int32_t>(), device.stream());
}

void ngrams(const glue::BanRepeatedNgramsCall& call) {
  const NgramArgs args = glue::ngram_args(call);
  const OnDevice device(call.logits);
  ban_repeated_ngrams(args, device.stream());
}

void logit_bias(const glue::AddLogitBiasCall& call) {
  const LogitBiasArgs args = glue::logit_bias_args(call);
  const OnDevice device(call.logits);
  add_logit_bias(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&sample_tokens>(library);
  glue::implement<&verify_drafts>(library);
  glue::implement<&logprobs>(library);
  glue::implement<&bitmask>(library);
  glue::implement<&penalties>(library);
  glue::implement<&ngrams>(library);
  glue::implement<&logit_bias>(library);
}

}  // namespace rtp_llm::cuda
