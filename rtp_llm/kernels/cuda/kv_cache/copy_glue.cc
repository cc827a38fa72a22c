// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/kv_cache/calls.h"
#include "rtp_llm/kernels/common/kv_cache/copy_blocks_checks.h"
#include "rtp_llm/kernels/common/lookup/calls.h"
#include "rtp_llm/kernels/common/lookup/lookup_checks.h"
#include "rtp_llm/kernels/cuda/kv_cache/copy.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor embedding_lookup(const glue::EmbeddingCall& call) {
  EmbeddingArgs args = glue::embedding_args(call);
  Tensor out = glue::empty(call.table, {call.ids.size(0), call.table.size(1)}, call.table.dtype());
  args.out = out.data();
  const OnDevice device(call.table);
  embedding(args, device.stream());
  return out;
}

void substitute_tokens_in_place(const glue::SubstituteTokensCall& call) {
  const SubstituteTokensArgs args = glue::substitute_tokens_args(call);
  const OnDevice device(call.ids);
  substitute_tokens(args, device.stream());
}

void copy_blocks_of_cache(const glue::CopyBlocksCall& call) {
  const CopyBlocksArgs args = glue::copy_blocks_args(call);
  const OnDevice device(call.cache);
  copy_blocks(args, device.stream());
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&embedding_lookup>(library);
  glue::implement<&substitute_tokens_in_place>(library);
  glue::implement<&copy_blocks_of_cache>(library);
}

}  // namespace rtp_llm::cuda
