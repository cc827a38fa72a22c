#include "rtp_llm/kernels/common/rope/fused_rope_checks.h"
#include "rtp_llm/kernels/cuda/rope/fused_rope.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

void launch(const glue::Tensor& q, const FusedRopeArgs& args) {
  const OnDevice device(q);
  fused_rope(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<glue::rotate_and_store<&launch>>(library, "rotate_and_store");
}

}  // namespace rtp_llm::cuda
