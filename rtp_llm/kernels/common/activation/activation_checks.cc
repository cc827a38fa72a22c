// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/activation/activation_checks.h"

namespace rtp_llm::glue {

GatedActivationArgs gated_activation_args(const Tensor& x, Activation activation,
                                          const char* what) {
  check_float_dtype(x, what);
  const Rows rows = rows_of(x, what);
  RTP_LLM_CHECK(rows.size % 2 == 0, what, " is ", x.describe(),
                "; expected an even last dimension (gate half, then up half)");
  return {x.data(), nullptr, rows.count, rows.size / 2, rows.stride, x.dtype(), activation};
}

}  // namespace rtp_llm::glue
