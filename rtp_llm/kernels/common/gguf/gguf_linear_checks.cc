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
  check_dim(blocks, 2, what);
  check_contiguous(blocks, what);
  const GgufTypeInfo& info = info_of(type);
  RTP_LLM_CHECK(blocks.size(1) % info.bytes == 0, what, " is ", blocks.describe(),
                "; expected rows of whole blocks of ", info.name, ", ", info.bytes, " bytes each");
  return blocks.size(1) / info.bytes * info.columns;
}

}  // namespace

Prepared<GgufLinearArgs, Tensor> prepare(const GgufLinearCall& call) {
  GgufLinearArgs args = {};
  args.type = type_of(call.kind, "gguf_linear");
  args.k = columns_of(call.blocks, args.type, "gguf_linear: blocks");
  args.n = call.blocks.size(0);
  check_float_dtype(call.x, "gguf_linear: x");
  check_dim(call.x, 2, "gguf_linear: x");
  check_contiguous_rows(call.x, "gguf_linear: x");
  RTP_LLM_CHECK(call.x.size(1) == args.k, "gguf_linear: x is ", call.x.describe(),
                " and the blocks hold rows of ", args.k, " columns");
  args.m = call.x.size(0);
  args.dtype = call.x.dtype();
  if (call.bias.has_value()) {
    check_dtype(*call.bias, args.dtype, "gguf_linear: bias");
    check_sizes(*call.bias, {args.n}, "gguf_linear: bias");
    check_contiguous(*call.bias, "gguf_linear: bias");
    args.bias = call.bias->data();
  }
  args.x = call.x.data();
  args.x_stride = call.x.stride(0);
  args.blocks = static_cast<const uint8_t*>(call.blocks.data());
  const int64_t bits = call.activation_bits;
  RTP_LLM_CHECK(bits == 8 || bits == 16 || bits == 32, "gguf_linear: activation_bits is ", bits,
                "; expected 8, 16 or 32");
  args.activation_bits = static_cast<int>(bits);
  args.out_dtype = call.float_results ? DType::kFloat32 : args.dtype;
  Tensor out = empty(call.x, {args.m, args.n}, args.out_dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

Prepared<GgufInterleaveArgs, void> prepare(const GgufInterleaveCall& call) {
  GgufInterleaveArgs args = {};
  args.type = type_of(call.kind, "gguf_interleave");
  args.columns = columns_of(call.blocks, args.type, "gguf_interleave: blocks");
  args.rows = call.blocks.size(0);
  args.blocks = static_cast<uint8_t*>(call.blocks.data());
  return {args};
}

Prepared<GgufEmbeddingArgs, void> prepare(const GgufEmbeddingCall& call) {
  GgufEmbeddingArgs args = {};
  args.type = type_of(call.kind, "gguf_embedding");
  args.columns = columns_of(call.blocks, args.type, "gguf_embedding: blocks");
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
