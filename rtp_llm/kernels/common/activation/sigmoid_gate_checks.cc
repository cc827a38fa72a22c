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

}  // namespace rtp_llm::glue
