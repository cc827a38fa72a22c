// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/activation/sigmoid_gate_checks.h"

namespace rtp_llm::glue {

Prepared<SigmoidGateArgs, void> prepare(const SigmoidGateCall& call) {
  check_float_dtype(call.x, "sigmoid_gate: x");
  check_dtype(call.gate, call.x.dtype(), "sigmoid_gate: gate");
  check_same_sizes(call.gate, call.x, "sigmoid_gate: gate");
  const GroupedRows rows = grouped_rows_of(call.x, "sigmoid_gate: x");
  const GroupedRows gates = grouped_rows_of(call.gate, "sigmoid_gate: gate");
  return {{call.x.data(), call.gate.data(), rows.count, call.x.size(-1), rows.inner, rows.stride,
           rows.group_stride, gates.stride, gates.group_stride, call.x.dtype()}};
}

Prepared<AddSigmoidGatedArgs, void> prepare(const AddSigmoidGatedCall& call) {
  check_float_dtype(call.out, "add_sigmoid_gated: out");
  check_dim(call.out, 2, "add_sigmoid_gated: out");
  check_contiguous(call.out, "add_sigmoid_gated: out");
  check_dtype(call.y, call.out.dtype(), "add_sigmoid_gated: y");
  check_same_sizes(call.y, call.out, "add_sigmoid_gated: y");
  check_contiguous(call.y, "add_sigmoid_gated: y");
  check_dtype(call.x, call.out.dtype(), "add_sigmoid_gated: x");
  check_dim(call.x, 2, "add_sigmoid_gated: x");
  check_contiguous(call.x, "add_sigmoid_gated: x");
  check_sizes(call.x, {call.out.size(0), call.x.size(1)}, "add_sigmoid_gated: x");
  check_dtype(call.gate, call.out.dtype(), "add_sigmoid_gated: gate");
  check_sizes(call.gate, {1, call.x.size(1)}, "add_sigmoid_gated: gate");
  check_contiguous(call.gate, "add_sigmoid_gated: gate");
  return {{call.out.data(), call.y.data(), call.x.data(), call.gate.data(), call.out.size(0),
           call.out.size(1), call.x.size(1), call.out.dtype()}};
}

}  // namespace rtp_llm::glue
