// Checks the tensors of a norm and describes them to kernels, for every device.
#pragma once

#include "rtp_llm/kernels/common/norm/norm.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// `out` is left to the caller: contiguous, like x.
RmsNormArgs rms_norm_args(const Tensor& x, const Tensor& weight, double eps);
AddRmsNormArgs add_rms_norm_args(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 double eps);
QkRmsNormArgs qk_rms_norm_args(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                               int64_t num_heads, int64_t num_kv_heads, double eps);

}  // namespace rtp_llm::glue
