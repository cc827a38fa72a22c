#include "rtp_llm/kernels/arguments/fused_rope_checks.h"
#include "rtp_llm/kernels/cpu/fused_rope.h"

namespace rtp_llm::cpu {
namespace {

void launch(const glue::Tensor& /*q*/, const FusedRopeArgs& args) {
  const int64_t heads = args.num_heads + 2 * args.num_kv_heads;
  glue::run(&fused_rope, args, args.tokens, grain_rows(heads * args.head_dim * 32));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<glue::rotate_and_store<&launch>>(library, "rotate_and_store");
}

}  // namespace rtp_llm::cpu
