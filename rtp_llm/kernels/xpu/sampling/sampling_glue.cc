// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/sampling/calls.h"
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

std::tuple<Tensor, Tensor> sample_rows(const glue::SampleCall& call) {
  SampleArgs args = glue::sample_args(call);
  check_vocab(args.logits);
  Tensor tokens = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  const OnQueue device(call.logits);
  sample(device.queue(), args);
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor, Tensor> top_logprobs_of(const glue::TopLogprobsCall& call) {
  TopLogprobsArgs args = glue::top_logprobs_args(call);
  check_vocab(args.logits);
  Tensor chosen = glue::empty(call.logits, {call.logits.size(0)}, DType::kFloat32);
  Tensor values = glue::empty(call.logits, {call.logits.size(0), call.k}, DType::kFloat32);
  Tensor ids = glue::empty(call.logits, {call.logits.size(0), call.k}, DType::kInt32);
  args.chosen = chosen.data<float>();
  args.values = values.data<float>();
  args.ids = ids.data<int32_t>();
  const Tensor keys = glue::empty(call.logits, {call.logits.size(0), call.k}, DType::kInt64);
  const OnQueue device(call.logits);
  top_logprobs(device.queue(), {args, keys.data<uint64_t>()});
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

void mask(const glue::ApplyTokenBitmaskCall& call) {
  const BitmaskArgs args = glue::bitmask_args(call);
  const OnQueue device(call.logits);
  apply_token_bitmask(device.queue(), args);
}

void penalize(const glue::ApplyPenaltiesCall& call) {
  const PenaltyArgs args = glue::penalty_args(call);
  const int64_t rows = penalty_counts(call.logits.size(0));
  const Tensor counts = glue::empty(call.logits, {rows, call.logits.size(1)}, DType::kInt32);
  const OnQueue device(call.logits);
  fill_zero(device.queue(), counts.data(), counts.numel() * element_size(DType::kInt32));
  apply_penalties(device.queue(), {args, counts.data<int32_t>(), rows});
}

void ban_ngrams(const glue::BanRepeatedNgramsCall& call) {
  const NgramArgs args = glue::ngram_args(call);
  const OnQueue device(call.logits);
  ban_repeated_ngrams(device.queue(), args);
}

void add_bias(const glue::AddLogitBiasCall& call) {
  const LogitBiasArgs args = glue::logit_bias_args(call);
  const OnQueue device(call.logits);
  add_logit_bias(device.queue(), args);
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) {
  glue::implement<&sample_rows>(library);
  glue::implement<&top_logprobs_of>(library);
  glue::implement<&mask>(library);
  glue::implement<&penalize>(library);
  glue::implement<&ban_ngrams>(library);
  glue::implement<&add_bias>(library);
}

}  // namespace rtp_llm::xpu
