#include "rtp_llm/kernels/common/fp8/fp8_norm_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_norm.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

std::tuple<Tensor, Tensor> norm_fp8(const Tensor& residual, const OptionalTensor& pending,
                                    const Tensor& weight, double eps) {
  glue::Fp8Norm result = glue::fp8_norm(residual, pending, weight, eps);
  const OnDevice device(residual);
  fp8_norm(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<norm_fp8>(library, "norm_fp8");
}

}  // namespace rtp_llm::cuda
