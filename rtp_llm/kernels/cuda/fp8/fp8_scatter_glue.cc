#include "rtp_llm/kernels/common/fp8/fp8_scatter_checks.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_scatter.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor> scatter_fp8(const Tensor& x, const Tensor& ids,
                                                       const Tensor& places,
                                                       const Tensor& offsets) {
  glue::Fp8Scatter result = glue::fp8_scatter(x, ids, places, offsets, false);
  const OnDevice device(x);
  fp8_scatter(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales), std::move(result.rows),
          std::move(result.counts)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> scatter_fp8_ragged(const Tensor& x,
                                                                      const Tensor& ids,
                                                                      const Tensor& places,
                                                                      const Tensor& offsets) {
  glue::Fp8Scatter result = glue::fp8_scatter(x, ids, places, offsets, true);
  const OnDevice device(x);
  fp8_scatter(result.args, device.stream());
  return {std::move(result.q), std::move(result.scales), std::move(result.rows),
          std::move(result.starts), std::move(result.counts)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<scatter_fp8>(library, "scatter_fp8");
  glue::implement<scatter_fp8_ragged>(library, "scatter_fp8_ragged");
}

}  // namespace rtp_llm::cuda
