#include "rtp_llm/kernels/common/rope/rope_checks.h"
#include "rtp_llm/kernels/cpu/lookup/lookup.h"
#include "rtp_llm/kernels/cpu/rope/rope.h"

namespace rtp_llm::cpu {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void check_positions(const RopeKvWriteArgs& args) {
  const int64_t bad = first_out_of_range(args.positions, args.tokens, args.num_positions);
  if (bad == args.tokens) return;
  glue::fail_index("rope_kv_write: positions[", bad, "] is ", args.positions[bad],
                   "; expected 0 <= position < ", args.num_positions, ", the rows of cos_sin");
}

void check_slots(const RopeKvWriteArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.slots[t] < -1 || args.slots[t] >= args.num_slots) {
      glue::fail_index("rope_kv_write: slot_mapping[", t, "] is ", args.slots[t],
                       "; expected -1 (not stored) or 0 <= slot < ", args.num_slots);
    }
  }
}

void rope_kv_write_packed(const Tensor& qkv, const Tensor& positions, const OptionalTensor& cos_sin,
                          const OptionalTensor& kv_cache, const OptionalTensor& slot_mapping,
                          int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, bool is_neox,
                          int64_t rotary_offset) {
  const RopeKvWriteArgs args =
      glue::rope_kv_write_args({qkv, positions, cos_sin, kv_cache, slot_mapping},
                               {num_heads, num_kv_heads, head_dim, is_neox, rotary_offset});
  if (args.cos_sin != nullptr) check_positions(args);
  if (args.kv_cache != nullptr) check_slots(args);
  glue::run(RTP_LLM_PICK_ISA(rope_kv_write), args, args.tokens, grain_rows(qkv.size(1) * 8));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<rope_kv_write_packed>(library, "rope_kv_write");
}

}  // namespace rtp_llm::cpu
