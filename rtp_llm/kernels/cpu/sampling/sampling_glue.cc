// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/sampling/calls.h"
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

std::tuple<Tensor, Tensor> sample(const glue::SampleCall& call) {
  SampleArgs args = glue::sample_args(call);
  Tensor tokens = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt8);
  args.tokens = tokens.data<int32_t>();
  args.status = status.data<int8_t>();
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(call.logits, args.logits, parallel);
  run_sample(args, scratch.data(), parallel);
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor> rejection_sample(const glue::RejectionSampleCall& call) {
  RejectionSampleArgs args = glue::rejection_sample_args(call);
  Tensor tokens = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt32);
  Tensor status = glue::empty(call.logits, {call.logits.size(0)}, DType::kInt8);
  args.sample.tokens = tokens.data<int32_t>();
  args.sample.status = status.data<int8_t>();
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(call.logits, args.sample.logits, parallel);
  run_rejection_sample(args, scratch.data(), parallel);
  return std::make_tuple(std::move(tokens), std::move(status));
}

std::tuple<Tensor, Tensor, Tensor> top_logprobs(const glue::TopLogprobsCall& call) {
  TopLogprobsArgs args = glue::top_logprobs_args(call);
  const int64_t rows = call.logits.size(0);
  Tensor chosen = glue::empty(call.logits, {rows}, DType::kFloat32);
  Tensor values = glue::empty(call.logits, {rows, call.k}, DType::kFloat32);
  Tensor ids = glue::empty(call.logits, {rows, call.k}, DType::kInt32);
  args.chosen = chosen.data<float>();
  args.values = values.data<float>();
  args.ids = ids.data<int32_t>();
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor scratch = make_scratch(call.logits, args.logits, parallel);
  run_top_logprobs(args, scratch.data(), parallel);
  return std::make_tuple(std::move(chosen), std::move(values), std::move(ids));
}

// What the host can check of index tensors.
void check_rows(const int32_t* rows, int64_t size, const Tensor& logits, const char* name) {
  for (int64_t i = 0; i < size; ++i) {
    RTP_LLM_CHECK(rows[i] >= 0 && rows[i] < logits.size(0), name, ": rows[", i, "] is ", rows[i],
                  " of ", logits.size(0), " rows");
  }
}

void apply_token_bitmask(const glue::ApplyTokenBitmaskCall& call) {
  const BitmaskArgs args = glue::bitmask_args(call);
  check_rows(args.rows, args.num_masks, call.logits, "apply_token_bitmask");
  run_bitmask(args, glue::parallel_for());
}

void apply_penalties(const glue::ApplyPenaltiesCall& call) {
  const PenaltyArgs args = glue::penalty_args(call);
  check_offsets(args.history, call.logits.size(0));
  const ParallelFor& parallel = glue::parallel_for();
  const Tensor counts =
      glue::empty(call.logits, {parallel.num_threads(), call.logits.size(1)}, DType::kInt32);
  std::memset(counts.data(), 0, counts.numel() * sizeof(int32_t));
  run_penalties(args, counts.data<int32_t>(), parallel);
}

void ban_repeated_ngrams(const glue::BanRepeatedNgramsCall& call) {
  const NgramArgs args = glue::ngram_args(call);
  check_offsets(args.history, call.logits.size(0));
  run_ngram_ban(args, glue::parallel_for());
}

void add_logit_bias(const glue::AddLogitBiasCall& call) {
  const LogitBiasArgs args = glue::logit_bias_args(call);
  check_rows(args.rows, args.size, call.logits, "add_logit_bias");
  run_logit_bias(args);
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&sample>(library);
  glue::implement<&rejection_sample>(library);
  glue::implement<&top_logprobs>(library);
  glue::implement<&apply_token_bitmask>(library);
  glue::implement<&apply_penalties>(library);
  glue::implement<&ban_repeated_ngrams>(library);
  glue::implement<&add_logit_bias>(library);
}

}  // namespace rtp_llm::cpu
