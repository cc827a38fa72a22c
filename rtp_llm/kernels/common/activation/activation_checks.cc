// SPDX-License-Identifier: Apache-2.0
// Checks the tensor of a gated activation and describes it to kernels, for every device.
#include "rtp_llm/kernels/common/activation/activation.h"
#include "rtp_llm/kernels/common/activation/calls.h"

namespace rtp_llm::glue {
namespace {

Prepared<GatedActivationArgs, Tensor> prepared_of(const Tensor& x, Activation activation,
                                                  const char* what) {
  check_float_dtype(x, what);
  const Rows rows = rows_of(x, what);
  RTP_LLM_CHECK(rows.size % 2 == 0, what, " is ", x.describe(),
                "; expected an even last dimension (gate half, then up half)");
  Tensor out = empty_with_last(x, rows.size / 2);
  return {{x.data(), out.data(), rows.count, rows.size / 2, rows.stride, x.dtype(), activation,
           rows.size / 2},
          std::move(out)};
}

}  // namespace

Prepared<SiluAndMulArgs, Tensor> prepare(const SiluAndMulCall& call) {
  return prepared_of(call.x, Activation::kSilu, "silu_and_mul: x");
}

Prepared<GeluAndMulArgs, Tensor> prepare(const GeluAndMulCall& call) {
  return prepared_of(call.x, call.tanh ? Activation::kGeluTanh : Activation::kGelu,
                     "gelu_and_mul: x");
}

Prepared<GeluArgs, Tensor> prepare(const GeluCall& call) {
  check_float_dtype(call.x, "gelu: x");
  const Rows rows = rows_of(call.x, "gelu: x");
  Tensor out = empty_like(call.x);
  return {{call.x.data(), out.data(), rows.count, rows.size, rows.stride, call.x.dtype(),
           call.tanh ? Activation::kGeluTanh : Activation::kGelu, 0},
          std::move(out)};
}

}  // namespace rtp_llm::glue
