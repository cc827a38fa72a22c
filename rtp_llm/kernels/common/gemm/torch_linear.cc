// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/gemm/torch_linear.h"

#include <torch/csrc/stable/library.h>

namespace rtp_llm::glue {
namespace {

namespace stable = torch::stable::detail;

void check_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_float_dtype(x, "linear: x");
  check_dim(x, 2, "linear: x");
  check_contiguous_rows(x, "linear: x");
  check_dtype(weight, x.dtype(), "linear: weight");
  check_dim(weight, 2, "linear: weight");
  check_contiguous_rows(weight, "linear: weight");
  RTP_LLM_CHECK(weight.size(1) == x.size(1), "linear: weight is ", weight.describe(), " and x ",
                x.describe(), "; expected equal numbers of columns");
  if (!bias.has_value()) return;
  check_dtype(*bias, x.dtype(), "linear: bias");
  check_sizes(*bias, {weight.size(0)}, "linear: bias");
  check_contiguous(*bias, "linear: bias");
}

// A second handle of the tensor, which the dispatcher takes over.
AtenTensorHandle lend(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  RTP_LLM_CHECK(aoti_torch_new_tensor_handle(tensor.handle(), &handle) == TORCH_SUCCESS,
                "linear: torch failed to share ", tensor.describe());
  return handle;
}

void call(const char* name, const char* overload, StableIValue* stack, const Tensor& x,
          const Tensor& weight) {
  RTP_LLM_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION) == TORCH_SUCCESS,
                "linear: torch failed to multiply ", x.describe(), " with ", weight.describe());
}

}  // namespace

Tensor torch_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_linear(x, weight, bias);
  std::optional<AtenTensorHandle> bias_handle;
  if (bias.has_value()) bias_handle = lend(*bias);
  StableIValue stack[3] = {stable::from(lend(x)), stable::from(lend(weight)),
                           stable::from(bias_handle)};
  call("aten::linear", "", stack, x, weight);
  return Tensor(stable::to<AtenTensorHandle>(stack[0]));
}

Tensor call_torch_linear(const LinearCall& call) {
  return torch_linear(call.x, call.weight, call.bias);
}

Tensor torch_float_linear(const Tensor& x, const Tensor& weight) {
  check_linear(x, weight, std::nullopt);
  StableIValue transposed[1] = {stable::from(lend(weight))};
  call("aten::t", "", transposed, x, weight);
  StableIValue stack[3] = {stable::from(lend(x)), transposed[0],
                           stable::from(torch::headeronly::ScalarType::Float)};
  call("aten::mm", "dtype", stack, x, weight);
  return Tensor(stable::to<AtenTensorHandle>(stack[0]));
}

}  // namespace rtp_llm::glue
