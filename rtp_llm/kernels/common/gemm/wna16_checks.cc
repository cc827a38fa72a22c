// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of products with integer weights in groups.
#include <string>

#include "rtp_llm/kernels/common/gemm/calls.h"
#include "rtp_llm/kernels/common/gemm/wna16.h"

namespace rtp_llm::glue {
namespace {

// Weights of one expert have no axis for it.
template <class Call>
Wna16LinearArgs described(const Call& call, int64_t experts, int64_t ordered) {
  const std::string name = Call::kName;
  check_float_dtype(call.x, (name + ": x").c_str());
  check_dim(call.x, 2, (name + ": x").c_str());
  RTP_LLM_CHECK(call.bits == 4 || call.bits == 8, name, ": bits is ", call.bits,
                "; expected 4 or 8");
  RTP_LLM_CHECK(call.group >= 0 && call.group % 32 == 0, name, ": group is ", call.group,
                "; expected a multiple of 32, or 0 for all columns");
  Wna16LinearArgs args = {};
  args.dtype = call.x.dtype();
  args.rows = call.x.size(0);
  args.n = call.outputs;
  args.k = call.x.size(1);
  args.bits = static_cast<int>(call.bits);
  args.experts = static_cast<int>(experts);
  args.part = call.group % 64 == 0 ? 64 : 32;
  const int64_t used = ordered > 0 ? ordered : args.k;
  args.columns = (used + args.part - 1) / args.part * args.part;
  args.group_parts = call.group == 0 ? args.parts() : call.group / args.part;
  args.groups = args.parts() == 0 ? 0 : (args.parts() + args.group_parts - 1) / args.group_parts;
  return args;
}

// As check_sizes(), with `rest` after the experts' axis, if there is one.
void check_packed(const Tensor& tensor, DType dtype, int64_t experts, bool grouped,
                  std::initializer_list<int64_t> rest, const std::string& what) {
  check_dtype(tensor, dtype, what.c_str());
  check_contiguous(tensor, what.c_str());
  bool fits = tensor.dim() == static_cast<int64_t>(rest.size()) + (grouped ? 1 : 0) &&
              (!grouped || tensor.size(0) == experts);
  std::string expected = grouped ? std::to_string(experts) : "";
  int64_t axis = grouped ? 1 : 0;
  for (const int64_t size : rest) {
    fits = fits && tensor.size(axis) == size;
    expected += (axis++ > 0 ? ", " : "") + std::to_string(size);
  }
  RTP_LLM_CHECK(fits, what, " is ", tensor.describe(), "; expected shape [", expected, "]");
}

template <class Call>
Prepared<Wna16LinearArgs, Tensor> packed(const Call& call, Wna16LinearArgs args, bool grouped) {
  const std::string name = Call::kName;
  const int64_t blocks = args.blocks();
  check_packed(call.weight, DType::kInt8, args.experts, grouped, {blocks, args.block_bytes()},
               name + ": weight");
  check_packed(call.scale, DType::kFloat32, args.experts, grouped,
               {blocks, args.groups, kWna16BlockRows}, name + ": scale");
  check_packed(call.zero, DType::kInt8, args.experts, grouped,
               {blocks, args.groups, kWna16BlockRows}, name + ": zero");
  if (call.bias.has_value()) {
    check_packed(*call.bias, args.dtype, args.experts, grouped, {args.n}, name + ": bias");
    args.bias = call.bias->data();
  }
  args.x = call.x.data();
  args.x_stride = call.x.stride(0);
  args.weight = static_cast<const uint8_t*>(call.weight.data());
  args.scale = call.scale.template data<float>();
  args.zero = static_cast<const uint8_t*>(call.zero.data());
  Tensor out = empty(call.x, {args.rows, args.n}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace

Prepared<Wna16LinearArgs, Tensor> prepare(const Wna16LinearCall& call) {
  check_inner_contiguous(call.x, 1, "wna16_linear: x");
  int64_t ordered = 0;
  if (call.order.has_value()) {
    check_index(*call.order, "wna16_linear: order");
    check_dim(*call.order, 1, "wna16_linear: order");
    ordered = call.order->size(0);
  }
  Wna16LinearArgs args = described(call, 1, ordered);
  RTP_LLM_CHECK(ordered % args.part == 0, "wna16_linear: order is ", call.order->describe(),
                "; expected columns in whole parts of ", args.part);
  if (ordered > 0) args.order = call.order->data<int32_t>();
  return packed(call, args, false);
}

Prepared<Wna16LinearArgs, Tensor> prepare(const Wna16GroupedLinearCall& call) {
  check_contiguous(call.x, "wna16_grouped_linear: x");
  check_dim(call.weight, 3, "wna16_grouped_linear: weight");
  const int64_t experts = call.weight.size(0);
  check_index(call.offsets, "wna16_grouped_linear: offsets");
  check_sizes(call.offsets, {experts + 1}, "wna16_grouped_linear: offsets");
  Wna16LinearArgs args = described(call, experts, 0);
  args.offsets = call.offsets.data<int32_t>();
  return packed(call, args, true);
}

void check_indices(const Wna16LinearArgs& args) {
  for (int64_t c = 0; args.order != nullptr && c < args.columns; ++c) {
    if (args.order[c] < -1 || args.order[c] >= args.k) {
      fail_index("wna16_linear: order[", c, "] is ", args.order[c], "; expected -1 or one of the ",
                 args.k, " columns of x");
    }
  }
  if (args.offsets == nullptr) return;
  check_offsets(args.offsets, args.experts, args.rows, "wna16_grouped_linear");
}

}  // namespace rtp_llm::glue
