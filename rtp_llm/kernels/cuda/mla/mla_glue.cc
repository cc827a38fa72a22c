#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cuda/mla/mla.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void rotate_and_store(const Tensor& q, const Tensor& q_out, const Tensor& kv,
                      const Tensor& norm_weight, double eps, const OptionalTensor& cos_sin,
                      const Tensor& positions, const Tensor& cache, const Tensor& slots,
                      bool is_neox) {
  const MlaStoreArgs args = glue::mla_store_args(
      {q, q_out, kv, norm_weight, cos_sin, positions, cache, slots}, eps, is_neox);
  const OnDevice device(q);
  mla_rotate_and_store(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<rotate_and_store>(library, "mla_rotate_and_store");
}

}  // namespace rtp_llm::cuda
