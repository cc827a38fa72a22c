// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of operators on GGUF blocks.
#include "rtp_llm/kernels/common/gguf/calls.h"
#include "rtp_llm/kernels/common/gguf/gguf_linear.h"

namespace rtp_llm::glue {
namespace {

GgufType type_of(const std::string& kind, const char* name) {
  for (int i = 0; i < kGgufTypeCount; ++i) {
    if (kind == kGgufTypes[i].name) return static_cast<GgufType>(i);
  }
  fail(name, ": kind is ", kind, "; expected a type of blocks such as Q4_K");
}

// How many columns rows of blocks have.
int64_t columns_of(const Tensor& blocks, GgufType type, const char* what) {
  check_dtype(blocks, DType::kInt8, what);
  const GgufTypeInfo& info = info_of(type);
  const int64_t bytes = blocks.size(blocks.dim() - 1);
  RTP_LLM_CHECK(bytes % info.bytes == 0, what, " is ", blocks.describe(),
                "; expected rows of whole blocks of ", info.name, ", ", info.bytes, " bytes each");
  return bytes / info.bytes * info.columns;
}

// The same of a matrix.
int64_t matrix_columns(const Tensor& blocks, GgufType type, const char* what) {
  check_dim(blocks, 2, what);
  check_contiguous(blocks, what);
  return columns_of(blocks, type, what);
}

// Everything but the bias; `x_name` is x in messages.
template <class Call>
Prepared<GgufLinearArgs, Tensor> product(const Call& call, const char* x_name, GgufType type,
                                         int64_t n, int64_t k, bool float_results) {
  GgufLinearArgs args = {};
  args.type = type;
  args.n = n;
  args.k = k;
  check_float_dtype(call.x, x_name);
  check_dim(call.x, 2, x_name);
  check_contiguous_rows(call.x, x_name);
  RTP_LLM_CHECK(call.x.size(1) == k, x_name, " is ", call.x.describe(),
                " and the blocks hold rows of ", k, " columns");
  const int64_t bits = call.activation_bits;
  RTP_LLM_CHECK(bits == 8 || bits == 16 || bits == 32, Call::kName, ": activation_bits is ", bits,
                "; expected 8, 16 or 32");
  args.m = call.x.size(0);
  args.x = call.x.data();
  args.x_stride = call.x.stride(0);
  args.blocks = static_cast<const uint8_t*>(call.blocks.data());
  args.activation_bits = static_cast<int>(bits);
  args.dtype = call.x.dtype();
  args.out_dtype = float_results ? DType::kFloat32 : args.dtype;
  Tensor out = empty(call.x, {args.m, args.n}, args.out_dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace

Prepared<GgufLinearArgs, Tensor> prepare(const GgufLinearCall& call) {
  const GgufType type = type_of(call.kind, "gguf_linear");
  const int64_t columns = matrix_columns(call.blocks, type, "gguf_linear: blocks");
  auto made =
      product(call, "gguf_linear: x", type, call.blocks.size(0), columns, call.float_results);
  if (call.bias.has_value()) {
    check_dtype(*call.bias, made.args.dtype, "gguf_linear: bias");
    check_sizes(*call.bias, {made.args.n}, "gguf_linear: bias");
    check_contiguous(*call.bias, "gguf_linear: bias");
    made.args.bias = call.bias->data();
  }
  return made;
}

Prepared<GgufGroupedLinearArgs, Tensor> prepare(const GgufGroupedLinearCall& call) {
  const GgufType type = type_of(call.kind, "gguf_grouped_linear");
  check_dim(call.blocks, 3, "gguf_grouped_linear: blocks");
  const int64_t n = call.blocks.size(1), row = call.blocks.size(2);
  RTP_LLM_CHECK(call.blocks.stride(2) == 1 && call.blocks.stride(1) == row,
                "gguf_grouped_linear: blocks must be contiguous for each expert");
  const int64_t columns = columns_of(call.blocks, type, "gguf_grouped_linear: blocks");
  auto made = product(call, "gguf_grouped_linear: x", type, n, columns, false);
  GgufGroupedLinearArgs args = {};
  args.experts = call.blocks.size(0);
  args.blocks_stride = call.blocks.stride(0);
  if (call.bias.has_value()) {
    check_dtype(*call.bias, made.args.dtype, "gguf_grouped_linear: bias");
    check_sizes(*call.bias, {args.experts, n}, "gguf_grouped_linear: bias");
    check_contiguous_rows(*call.bias, "gguf_grouped_linear: bias");
    made.args.bias = call.bias->data();
    args.bias_stride = call.bias->stride(0);
  }
  check_index(call.offsets, "gguf_grouped_linear: offsets");
  check_sizes(call.offsets, {args.experts + 1}, "gguf_grouped_linear: offsets");
  args.offsets = call.offsets.data<int32_t>();
  args.linear = made.args;
  return {args, std::move(made.result)};
}

void check_indices(const GgufGroupedLinearArgs& args) {
  check_offsets(args.offsets, args.experts, args.linear.m, "gguf_grouped_linear");
}

Prepared<GgufInterleaveArgs, void> prepare(const GgufInterleaveCall& call) {
  GgufInterleaveArgs args = {};
  args.type = type_of(call.kind, "gguf_interleave");
  args.columns = matrix_columns(call.blocks, args.type, "gguf_interleave: blocks");
  args.rows = call.blocks.size(0);
  args.blocks = static_cast<uint8_t*>(call.blocks.data());
  return {args};
}

Prepared<GgufEmbeddingArgs, void> prepare(const GgufEmbeddingCall& call) {
  GgufEmbeddingArgs args = {};
  args.type = type_of(call.kind, "gguf_embedding");
  args.columns = matrix_columns(call.blocks, args.type, "gguf_embedding: blocks");
  args.rows = call.blocks.size(0);
  check_index(call.ids, "gguf_embedding: ids");
  args.count = call.ids.size(0);
  check_float_dtype(call.out, "gguf_embedding: out");
  check_sizes(call.out, {args.count, args.columns}, "gguf_embedding: out");
  check_contiguous(call.out, "gguf_embedding: out");
  args.ids = call.ids.data<int32_t>();
  args.blocks = static_cast<const uint8_t*>(call.blocks.data());
  args.out = call.out.data();
  args.dtype = call.out.dtype();
  return {args};
}

void check_indices(const GgufEmbeddingArgs& args) {
  check_range(args.ids, args.count, 0, args.rows, "gguf_embedding: ids", "0 <= id < ",
              ", the rows of the table");
}

}  // namespace rtp_llm::glue
