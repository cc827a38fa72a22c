#include "rtp_llm/kernels/common/rope/rope_checks.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/rope/rope.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void rope_kv_write_packed(const Tensor& qkv, const Tensor& positions, const OptionalTensor& cos_sin,
                          const OptionalTensor& kv_cache, const OptionalTensor& slot_mapping,
                          int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, bool is_neox,
                          int64_t rotary_offset) {
  const RopeKvWriteArgs args =
      glue::rope_kv_write_args({qkv, positions, cos_sin, kv_cache, slot_mapping},
                               {num_heads, num_kv_heads, head_dim, is_neox, rotary_offset});
  const OnDevice device(qkv);
  rope_kv_write(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<rope_kv_write_packed>(library, "rope_kv_write");
}

}  // namespace rtp_llm::cuda
