// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/norm/norm_checks.h"

namespace rtp_llm::glue {
namespace {

void check_weight(const Tensor& weight, const Tensor& x, int64_t size, const char* what) {
  check_dtype(weight, x.dtype(), what);
  check_sizes(weight, {size}, what);
  check_contiguous(weight, what);
}

// Null if there is no bias.
const void* checked_bias(const OptionalTensor& bias, const Tensor& x, int64_t size,
                         const char* what) {
  if (!bias.has_value()) return nullptr;
  check_weight(*bias, x, size, what);
  return bias->data();
}

}  // namespace

RmsNormArgs rms_norm_args(const Tensor& x, const Tensor& weight, double eps, double offset) {
  check_float_dtype(x, "rms_norm: x");
  const Rows rows = rows_of(x, "rms_norm: x");
  check_weight(weight, x, rows.size, "rms_norm: weight");
  return {x.data(),
          weight.data(),
          nullptr,
          rows.count,
          rows.size,
          rows.stride,
          rows.size,
          x.dtype(),
          static_cast<float>(eps),
          static_cast<float>(offset)};
}

Prepared<RmsNormArgs, Tensor> prepare(const RmsNormCall& call) {
  RmsNormArgs args = rms_norm_args(call.x, call.weight, call.eps, call.norm_offset);
  Tensor out = empty_like(call.x);
  args.out = out.data();
  return {args, std::move(out)};
}

Prepared<FusedAddRmsNormArgs, void> prepare(const FusedAddRmsNormCall& call) {
  check_float_dtype(call.x, "fused_add_rms_norm: x");
  check_dtype(call.residual, call.x.dtype(), "fused_add_rms_norm: residual");
  check_same_sizes(call.residual, call.x, "fused_add_rms_norm: residual");
  const Rows rows = rows_of(call.x, "fused_add_rms_norm: x");
  const Rows residual_rows = rows_of(call.residual, "fused_add_rms_norm: residual");
  check_weight(call.weight, call.x, rows.size, "fused_add_rms_norm: weight");
  RTP_LLM_CHECK(call.x.data() != call.residual.data() || call.x.numel() == 0,
                "fused_add_rms_norm: x and residual are the same memory");
  return {{call.x.data(), call.residual.data(), call.weight.data(), rows.count, rows.size,
           rows.stride, residual_rows.stride, call.x.dtype(), static_cast<float>(call.eps),
           static_cast<float>(call.norm_offset)}};
}

Prepared<QkRmsNormArgs, void> prepare(const QkRmsNormCall& call) {
  check_float_dtype(call.qkv, "qk_rms_norm: qkv");
  check_dim(call.qkv, 2, "qk_rms_norm: qkv");
  const Rows rows = rows_of(call.qkv, "qk_rms_norm: qkv");
  const int64_t heads = call.num_heads + 2 * call.num_kv_heads;
  RTP_LLM_CHECK(call.num_heads > 0 && call.num_kv_heads > 0 && rows.size % heads == 0,
                "qk_rms_norm: qkv is ", call.qkv.describe(), "; expected rows of ", call.num_heads,
                " + 2 * ", call.num_kv_heads, " heads");
  const int64_t head_dim = rows.size / heads;
  check_weight(call.q_weight, call.qkv, head_dim, "qk_rms_norm: q_weight");
  check_weight(call.k_weight, call.qkv, head_dim, "qk_rms_norm: k_weight");
  return {{call.qkv.data(), call.q_weight.data(), call.k_weight.data(), rows.count, call.num_heads,
           call.num_kv_heads, head_dim, rows.stride, call.qkv.dtype(), static_cast<float>(call.eps),
           static_cast<float>(call.norm_offset)}};
}

Prepared<GatedRmsNormArgs, Tensor> prepare(const GatedRmsNormCall& call) {
  check_float_dtype(call.x, "gated_rms_norm: x");
  check_dtype(call.gate, call.x.dtype(), "gated_rms_norm: gate");
  check_same_sizes(call.gate, call.x, "gated_rms_norm: gate");
  const GroupedRows rows = grouped_rows_of(call.x, "gated_rms_norm: x");
  const GroupedRows gates = grouped_rows_of(call.gate, "gated_rms_norm: gate");
  const int64_t size = call.x.size(-1);
  check_weight(call.weight, call.x, size, "gated_rms_norm: weight");
  Tensor out = empty_like(call.x);
  return {{call.x.data(), call.gate.data(), call.weight.data(), out.data(), rows.count, size,
           rows.inner, rows.stride, rows.group_stride, gates.stride, gates.group_stride,
           call.x.dtype(), static_cast<float>(call.eps)},
          std::move(out)};
}

Prepared<LayerNormArgs, Tensor> prepare(const LayerNormCall& call) {
  check_float_dtype(call.x, "layer_norm: x");
  const Rows rows = rows_of(call.x, "layer_norm: x");
  check_weight(call.weight, call.x, rows.size, "layer_norm: weight");
  const void* bias = checked_bias(call.bias, call.x, rows.size, "layer_norm: bias");
  Tensor out = empty_like(call.x);
  return {{call.x.data(), call.weight.data(), bias, out.data(), rows.count, rows.size, rows.stride,
           rows.size, call.x.dtype(), static_cast<float>(call.eps)},
          std::move(out)};
}

Prepared<FusedAddLayerNormArgs, void> prepare(const FusedAddLayerNormCall& call) {
  check_float_dtype(call.x, "fused_add_layer_norm: x");
  check_dtype(call.residual, call.x.dtype(), "fused_add_layer_norm: residual");
  check_same_sizes(call.residual, call.x, "fused_add_layer_norm: residual");
  const Rows rows = rows_of(call.x, "fused_add_layer_norm: x");
  const Rows residual_rows = rows_of(call.residual, "fused_add_layer_norm: residual");
  check_weight(call.weight, call.x, rows.size, "fused_add_layer_norm: weight");
  const void* bias = checked_bias(call.bias, call.x, rows.size, "fused_add_layer_norm: bias");
  RTP_LLM_CHECK(call.x.data() != call.residual.data() || call.x.numel() == 0,
                "fused_add_layer_norm: x and residual are the same memory");
  return {{call.x.data(), call.residual.data(), call.weight.data(), bias, rows.count, rows.size,
           rows.stride, residual_rows.stride, call.x.dtype(), static_cast<float>(call.eps)}};
}

}  // namespace rtp_llm::glue
