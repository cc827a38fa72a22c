// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/fp8/fp8_gemm_checks.h"

#include "rtp_llm/kernels/common/fp8/calls.h"
#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"

namespace rtp_llm::glue {
namespace {

constexpr int64_t kOutputs = 64;
constexpr int64_t kSwappedRows = 64;  // when the caller leaves it open

void check_operand(const Tensor& tensor, DType dtype, int64_t dim, const char* what) {
  constexpr uintptr_t kAccessBytes = 16;
  check_dtype(tensor, dtype, what);
  check_dim(tensor, dim, what);
  check_contiguous(tensor, what);
  RTP_LLM_CHECK(reinterpret_cast<uintptr_t>(tensor.data()) % kAccessBytes == 0, what,
                " does not begin at a multiple of 16 bytes");
}

// Leading axis first where `groups` counts them.
void check_axes(const Tensor& tensor, bool grouped, int64_t groups, int64_t rows, int64_t columns,
                const char* what) {
  if (grouped) {
    check_sizes(tensor, {groups, rows, columns}, what);
  } else {
    check_sizes(tensor, {rows, columns}, what);
  }
}

void check_indices(const Fp8GemmArgs& args, const Tensor* indices) {
  switch (args.form) {
    case Fp8Form::kPlain:
      return;
    case Fp8Form::kMasked:
      check_index(*indices, "fp8_gemm: masked_m");
      return check_sizes(*indices, {args.groups}, "fp8_gemm: masked_m");
    case Fp8Form::kContiguous:
      check_index(*indices, "fp8_gemm: m_indices");
      return check_sizes(*indices, {args.rows}, "fp8_gemm: m_indices");
    case Fp8Form::kRagged:
      check_index(*indices, "fp8_gemm: counts");
      return check_sizes(*indices, {args.groups}, "fp8_gemm: counts");
  }
}

void set_choice(Fp8GemmArgs& args, const Fp8Choice& choice) {
  const int64_t sms = choice.num_sms, expected = choice.expected_m;
  RTP_LLM_CHECK(sms == -1 || sms > 0, "fp8_gemm: num_sms is ", sms,
                "; expected -1 for all, or at least 1");
  args.num_sms = static_cast<int>(sms < INT32_MAX ? sms : INT32_MAX);
  args.expected_rows = expected > 0 && expected < args.rows ? expected : args.rows;
  args.swap_ab = choice.swap_ab.value_or(args.expected_rows <= kSwappedRows);
}

}  // namespace

Fp8GemmArgs fp8_gemm_args(const Fp8Operands& operands, Fp8Form form, const Tensor* indices,
                          const Fp8Choice& choice) {
  const bool masked = form == Fp8Form::kMasked, grouped = form != Fp8Form::kPlain;
  check_operand(operands.q, DType::kFloat8E4m3fn, masked ? 3 : 2, "fp8_gemm: q");
  check_operand(operands.scales, DType::kFloat32, masked ? 3 : 2, "fp8_gemm: scales");
  check_operand(operands.weight, DType::kFloat8E4m3fn, grouped ? 3 : 2, "fp8_gemm: weight");
  check_operand(operands.weight_scales, DType::kFloat32, grouped ? 3 : 2,
                "fp8_gemm: weight_scales");
  Fp8GemmArgs args = {};
  args.q = operands.q.data();
  args.scales = operands.scales.data<float>();
  args.weight = operands.weight.data();
  args.weight_scales = operands.weight_scales.data<float>();
  args.groups = grouped ? operands.weight.size(0) : 1;
  args.rows = operands.q.size(-2);
  args.scale_rows = fp8_scale_rows(args.rows);
  args.outputs = operands.weight.size(-2);
  args.columns = operands.q.size(-1);
  args.form = form;
  const bool whole =
      args.columns > 0 && args.columns % kFp8Block == 0 && args.outputs % kOutputs == 0;
  RTP_LLM_CHECK(whole, "fp8_gemm: weight is ", operands.weight.describe(),
                "; expected multiples of 64 and 128");
  RTP_LLM_CHECK(args.rows <= INT32_MAX && args.outputs <= INT32_MAX, "fp8_gemm: q is ",
                operands.q.describe(), "; that many rows are not supported");
  const int64_t blocks = args.columns / kFp8Block;
  check_axes(operands.q, masked, args.groups, args.rows, args.columns, "fp8_gemm: q");
  check_axes(operands.scales, masked, args.groups, blocks, args.scale_rows, "fp8_gemm: scales");
  check_axes(operands.weight, grouped, args.groups, args.outputs, args.columns, "fp8_gemm: weight");
  check_axes(operands.weight_scales, grouped, args.groups, fp8_blocks(args.outputs), blocks,
             "fp8_gemm: weight_scales");
  check_indices(args, indices);
  if (grouped) args.indices = indices->data<int32_t>();
  set_choice(args, choice);
  return args;
}

void set_out(Fp8GemmArgs& args, const Tensor& out) {
  const bool masked = args.form == Fp8Form::kMasked;
  check_operand(out, DType::kBFloat16, masked ? 3 : 2, "fp8_gemm: output");
  check_axes(out, masked, args.groups, args.rows, args.outputs, "fp8_gemm: output");
  args.out = out.data();
}

Tensor fp8_gemm_result(Fp8GemmArgs& args, const Tensor& like) {
  const int64_t sizes[] = {args.groups, args.rows, args.outputs};
  const bool masked = args.form == Fp8Form::kMasked;
  Tensor out = empty(like, masked ? sizes : sizes + 1, masked ? 3 : 2, DType::kBFloat16);
  args.out = out.data();
  return out;
}

Prepared<Fp8LinearArgs, Tensor> prepare(const Fp8LinearCall& call) {
  Fp8GemmArgs args = fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales},
                                   Fp8Form::kPlain, nullptr, {call.num_sms, call.swap_ab});
  Tensor out = fp8_gemm_result(args, call.q);
  return {args, std::move(out)};
}

Prepared<Fp8GroupedMaskedArgs, Tensor> prepare(const Fp8GroupedMaskedCall& call) {
  Fp8GemmArgs args =
      fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales}, Fp8Form::kMasked,
                    &call.masked_m, {call.num_sms, call.swap_ab, call.expected_m});
  Tensor out = fp8_gemm_result(args, call.q);
  return {args, std::move(out)};
}

Prepared<Fp8GroupedContiguousArgs, Tensor> prepare(const Fp8GroupedContiguousCall& call) {
  Fp8GemmArgs args = fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales},
                                   Fp8Form::kContiguous, &call.m_indices, {call.num_sms, false});
  Tensor out = fp8_gemm_result(args, call.q);
  return {args, std::move(out)};
}

Prepared<Fp8GroupedRaggedArgs, Tensor> prepare(const Fp8GroupedRaggedCall& call) {
  Fp8GemmArgs args =
      fp8_gemm_args({call.q, call.scales, call.weight, call.weight_scales}, Fp8Form::kRagged,
                    &call.counts, {call.num_sms, call.swap_ab, call.expected_m});
  check_index(call.starts, "fp8_gemm: starts");
  check_sizes(call.starts, {args.groups + 1}, "fp8_gemm: starts");
  args.starts = call.starts.data<int32_t>();
  Tensor out = fp8_gemm_result(args, call.q);
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
