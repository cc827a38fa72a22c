// linear by torch's own matrix products (cuBLAS, hipBLASLt): nothing of ours is faster at sizes
// that fill the device.
#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

namespace detail = torch::stable::detail;
using glue::OptionalTensor;
using glue::Tensor;

void check_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  glue::check_float_dtype(x, "linear: x");
  glue::check_dim(x, 2, "linear: x");
  glue::check_contiguous_rows(x, "linear: x");
  glue::check_dtype(weight, x.dtype(), "linear: weight");
  glue::check_dim(weight, 2, "linear: weight");
  glue::check_contiguous_rows(weight, "linear: weight");
  RTP_LLM_CHECK(weight.size(1) == x.size(1), "linear: weight is ", weight.describe(), " and x ",
                x.describe(), "; expected equal numbers of columns");
  if (!bias.has_value()) return;
  glue::check_dtype(*bias, x.dtype(), "linear: bias");
  glue::check_sizes(*bias, {weight.size(0)}, "linear: bias");
  glue::check_contiguous(*bias, "linear: bias");
}

// A second handle of the tensor, which the dispatcher takes over.
AtenTensorHandle lend(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  RTP_LLM_CHECK(aoti_torch_new_tensor_handle(tensor.handle(), &handle) == TORCH_SUCCESS,
                "linear: torch failed to share ", tensor.describe());
  return handle;
}

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_linear(x, weight, bias);
  std::optional<AtenTensorHandle> bias_handle;
  if (bias.has_value()) bias_handle = lend(*bias);
  StableIValue stack[3] = {detail::from(lend(x)), detail::from(lend(weight)),
                           detail::from(bias_handle)};
  RTP_LLM_CHECK(
      torch_call_dispatcher("aten::linear", "", stack, TORCH_ABI_VERSION) == TORCH_SUCCESS,
      "linear: torch failed to multiply ", x.describe(), " with ", weight.describe());
  return Tensor(detail::to<AtenTensorHandle>(stack[0]));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) { glue::implement<linear>(library, "linear"); }

}  // namespace rtp_llm::cuda
