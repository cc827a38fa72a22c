// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/mla/calls.h"
#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention_glue.h"
#include "rtp_llm/kernels/cpu/lookup/lookup.h"
#include "rtp_llm/kernels/cpu/mla/mla.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

void check_indices(const MlaStoreArgs& args) {
  const int64_t bad = args.cos_sin == nullptr
                          ? args.tokens
                          : first_out_of_range(args.positions, args.tokens, args.num_positions);
  if (bad != args.tokens) {
    glue::fail_index("mla_rotate_and_store: positions[", bad, "] is ", args.positions[bad],
                     "; expected 0 <= position < ", args.num_positions, ", the rows of cos_sin");
  }
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.slots[t] < -1 || args.slots[t] >= args.num_slots) {
      glue::fail_index("mla_rotate_and_store: slots[", t, "] is ", args.slots[t],
                       "; expected -1 (not stored) or 0 <= slot < ", args.num_slots);
    }
  }
}

void rotate_and_store(const glue::MlaRotateAndStoreCall& call) {
  const MlaStoreArgs args = glue::mla_store_args(call);
  check_indices(args);
  const int64_t elements = args.num_heads * args.rope_size + args.latent_size;
  glue::run(RTP_LLM_PICK_ISA(mla_rotate_and_store), args, args.tokens, grain_rows(elements * 8));
}

// The kernel of paged attention, on keys that are values too.
Tensor attention(const glue::MlaAttentionCall& call) {
  return attend(call.q, glue::mla_attention_args({call.q, call.cache, call.cu_seqlens_q,
                                                  call.seq_lens, call.block_table},
                                                 call.latent_size, call.scale));
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) {
  glue::implement<&rotate_and_store>(library);
  glue::implement<&attention>(library);
}

}  // namespace rtp_llm::cpu
