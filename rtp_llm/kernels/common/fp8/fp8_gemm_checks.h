// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of GEMMs of block-scaled FP8 and describes them to kernels.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// The operands, of q [M, K] or [G, M, K]; a weight [N, K] or [G, N, K].
struct Fp8Operands {
  const Tensor& q;
  const Tensor& scales;
  const Tensor& weight;
  const Tensor& weight_scales;
};

// What chooses a kernel; `num_sms` -1: all multiprocessors, `swap_ab` none: by the rows.
struct Fp8Choice {
  int64_t num_sms;
  std::optional<bool> swap_ab;
  int64_t expected_m = 0;  // rows that a group has as a rule; 0: not known
};

// All but `out`. `indices`: masked_m, m_indices, counts, or null.
Fp8GemmArgs fp8_gemm_args(const Fp8Operands& operands, Fp8Form form, const Tensor* indices,
                          const Fp8Choice& choice);

// The caller's `out`, checked.
void set_out(Fp8GemmArgs& args, const Tensor& out);

// A new result.
Tensor fp8_gemm_result(Fp8GemmArgs& args, const Tensor& like);

}  // namespace rtp_llm::glue
