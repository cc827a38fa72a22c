#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cpu/lookup/lookup.h"
#include "rtp_llm/kernels/cpu/mla/mla.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention_glue.h"

namespace rtp_llm::cpu {
namespace {

using glue::OptionalTensor;
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

void rotate_and_store(const Tensor& q, const Tensor& q_out, const Tensor& kv,
                      const Tensor& norm_weight, double eps, const OptionalTensor& cos_sin,
                      const Tensor& positions, const Tensor& cache, const Tensor& slots,
                      bool is_neox) {
  const MlaStoreArgs args = glue::mla_store_args(
      {q, q_out, kv, norm_weight, cos_sin, positions, cache, slots}, eps, is_neox);
  check_indices(args);
  const int64_t elements = args.num_heads * args.rope_size + args.latent_size;
  glue::run(RTP_LLM_PICK_ISA(mla_rotate_and_store), args, args.tokens, grain_rows(elements * 8));
}

// The kernel of paged attention, on keys that are values too.
Tensor attention(const Tensor& q, const Tensor& cache, const Tensor& cu_seqlens_q,
                 const Tensor& seq_lens, const Tensor& block_table, int64_t latent_size,
                 int64_t /*max_seqlen_q*/, int64_t /*max_seqlen_k*/, double scale) {
  return attend(q, glue::mla_attention_args({q, cache, cu_seqlens_q, seq_lens, block_table},
                                            latent_size, scale));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<rotate_and_store>(library, "mla_rotate_and_store");
  glue::implement<attention>(library, "mla_attention");
}

}  // namespace rtp_llm::cpu
