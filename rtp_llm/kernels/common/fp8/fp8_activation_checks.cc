// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/fp8_activation_checks.h"

#include <vector>

#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"

namespace rtp_llm::glue {

Fp8Activation fp8_activation(const Tensor& x, const OptionalTensor& masked_m, bool gated,
                             const char* what) {
  check_float_dtype(x, what);
  check_contiguous(x, what);
  RTP_LLM_CHECK(x.dim() >= 2, what, " is ", x.describe(), "; expected [..., M, K]");
  RTP_LLM_CHECK(!gated || x.size(-1) % 2 == 0, what, " is ", x.describe(),
                "; expected an even last dimension (gate half, then up half)");
  Fp8ActivationArgs args = {};
  args.x = x.data();
  args.rows = x.size(-2);
  args.columns = x.size(-1) / (gated ? 2 : 1);
  args.scale_rows = fp8_scale_rows(args.rows);
  args.dtype = x.dtype();
  args.gated = gated;
  args.groups = 1;
  std::vector<int64_t> sizes(x.sizes(), x.sizes() + x.dim());
  for (int64_t axis = 0; axis < x.dim() - 2; ++axis) args.groups *= x.size(axis);
  if (masked_m.has_value()) {
    RTP_LLM_CHECK(x.dim() == 3, what, " is ", x.describe(), "; with masked_m expected [G, M, K]");
    check_index(*masked_m, "masked_m");
    check_sizes(*masked_m, {args.groups}, "masked_m");
    args.masked_m = masked_m->data<int32_t>();
  }
  sizes.back() = args.columns;
  Tensor q = empty(x, sizes.data(), x.dim(), DType::kFloat8E4m3fn);
  sizes[sizes.size() - 2] = fp8_blocks(args.columns);
  sizes.back() = args.scale_rows;
  Tensor scales = empty(x, sizes.data(), x.dim(), DType::kFloat32);
  args.q = q.data();
  args.scales = scales.data<float>();
  return {args, std::move(q), std::move(scales)};
}

namespace {

template <class Args>
Prepared<Args, std::tuple<Tensor, Tensor>> prepared_of(Fp8Activation&& x) {
  return {x.args, {std::move(x.q), std::move(x.scales)}};
}

}  // namespace

Prepared<Fp8QuantizeArgs, std::tuple<Tensor, Tensor>> prepare(const Fp8QuantizeCall& call) {
  return prepared_of<Fp8QuantizeArgs>(
      fp8_activation(call.x, call.masked_m, false, "fp8_quantize: x"));
}

Prepared<SiluAndMulFp8Args, std::tuple<Tensor, Tensor>> prepare(const SiluAndMulFp8Call& call) {
  return prepared_of<SiluAndMulFp8Args>(
      fp8_activation(call.x, call.masked_m, true, "silu_and_mul_fp8: x"));
}

}  // namespace rtp_llm::glue
