// SPDX-License-Identifier: Apache-2.0
// Operators without a result tensor, and the one that may be a library's product.
#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/skinny_linear_checks.h"
#include "rtp_llm/kernels/common/gemm/torch_linear.h"
#include "rtp_llm/kernels/cuda/gemm/skinny_linear.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

int64_t rows_of_products(const glue::SkinnyLinearRowsCall& call) {
  glue::check_dim(call.weight, 2, "skinny_linear_rows: weight");
  const OnDevice device(call.weight);
  return skinny_linear_rows(call.weight.size(0), call.weight.size(1), call.weight.dtype());
}

int64_t rows_of_fused_products(const glue::FusedLinearRowsCall& call) {
  glue::check_dim(call.weight, 2, "fused_linear_rows: weight");
  const OnDevice device(call.weight);
  return fused_linear_rows(call.weight.size(0), call.weight.size(1), call.weight.dtype());
}

bool rows_aligned(const Tensor& matrix) {
  constexpr uintptr_t kAccessBytes = 16;
  const int64_t stride_bytes = matrix.stride(0) * element_size(matrix.dtype());
  return (reinterpret_cast<uintptr_t>(matrix.data()) | static_cast<uintptr_t>(stride_bytes)) %
             kAccessBytes ==
         0;
}

// Up to how many rows of x float32 results are quicker than a library's. With many outputs and
// short rows the results are as many bytes again, which streams of the weight write between its
// tiles.
int64_t float_rows(const Tensor& weight) {
  constexpr int64_t kManyOutputs = 16384, kLongRow = 8192;
  const int64_t outputs = weight.size(0), columns = weight.size(1);
  if (outputs < kManyOutputs || columns >= kLongRow) {
    return skinny_linear_rows(outputs, columns, weight.dtype());
  }
  return fused_linear_rows(outputs, columns, weight.dtype());
}

bool takes(const Tensor& x, const Tensor& weight) {
  return x.dim() == 2 && weight.dim() == 2 && rows_aligned(x) && rows_aligned(weight) &&
         x.size(0) > 0 && x.size(0) <= float_rows(weight);
}

Tensor multiply_to_float(const glue::LinearFloatCall& call) {
  const OnDevice device(call.x);
  if (!takes(call.x, call.weight)) return glue::torch_float_linear(call.x, call.weight);
  SkinnyLinearArgs args = glue::skinny_linear_args(call.x, call.weight, std::nullopt);
  Tensor out = glue::skinny_linear_result(args, call.x, LinearEnd::kFloat);
  skinny_linear(args, device.stream());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) {
  glue::implement<&rows_of_fused_products>(library);
  glue::implement<&rows_of_products>(library);
  glue::implement<&multiply_to_float>(library);
}

}  // namespace rtp_llm::cuda
