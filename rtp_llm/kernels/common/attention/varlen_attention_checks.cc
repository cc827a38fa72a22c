// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of varlen_attention and describes them to kernels, for every device.
#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/varlen_attention.h"

namespace rtp_llm::glue {
namespace {

// No sequence is longer; kernels take blocks by powers of two.
constexpr int kSequenceBlock = 1 << 30;

// Strides of axes with one element mean nothing.
bool same_strides(const Tensor& a, const Tensor& b) {
  for (int64_t axis = 0; axis < 2; ++axis) {
    if (a.size(axis) > 1 && a.stride(axis) != b.stride(axis)) return false;
  }
  return true;
}

void check_bias(const VarlenAttentionCall& call) {
  const Tensor& bias = *call.bias;
  check_dtype(bias, DType::kFloat32, "varlen_attention: bias");
  check_dim(bias, 2, "varlen_attention: bias");
  check_contiguous(bias, "varlen_attention: bias");
  const int64_t distances = bias.size(1);
  RTP_LLM_CHECK(bias.size(0) == call.query.size(1) && distances % 2 == 1 &&
                    distances >= 2 * call.max_seqlen - 1 && distances < kSequenceBlock,
                "varlen_attention: bias is ", bias.describe(), "; expected [", call.query.size(1),
                ", 2 L - 1] for an L of at least max_seqlen, ", call.max_seqlen);
}

void check(const VarlenAttentionCall& call) {
  const Tensor& query = call.query;
  const Tensor& key = call.key;
  check_float_dtype(query, "varlen_attention: query");
  check_dim(query, 3, "varlen_attention: query");
  const int64_t head_dim = query.size(2);
  RTP_LLM_CHECK(head_dim >= 16 && head_dim <= 256 && head_dim % 8 == 0 && query.stride(2) == 1,
                "varlen_attention: query is ", query.describe(),
                "; expected [tokens, heads, head size] with a contiguous head size that is a "
                "multiple of 8 from 16 to 256");
  check_dtype(key, query.dtype(), "varlen_attention: key");
  check_dim(key, 3, "varlen_attention: key");
  RTP_LLM_CHECK(key.size(0) == query.size(0) && key.size(1) > 0 &&
                    query.size(1) % key.size(1) == 0 && key.size(2) == head_dim &&
                    key.stride(2) == 1,
                "varlen_attention: key is ", key.describe(), " and query ", query.describe(),
                "; expected equal tokens and head sizes, and query heads a multiple of key heads");
  check_dtype(call.value, query.dtype(), "varlen_attention: value");
  check_same_sizes(call.value, key, "varlen_attention: value");
  RTP_LLM_CHECK(call.value.stride(2) == 1 && same_strides(key, call.value),
                "varlen_attention: value is ", call.value.describe(),
                " with other strides than key; expected the same ones");
  check_index(call.cu_seqlens, "varlen_attention: cu_seqlens");
  RTP_LLM_CHECK(call.cu_seqlens.numel() > 0,
                "varlen_attention: cu_seqlens is empty; expected [sequences + 1]");
  RTP_LLM_CHECK(call.window >= 0 && call.max_seqlen >= 0 && call.max_seqlen <= kSequenceBlock,
                "varlen_attention: window is ", call.window, " and max_seqlen ", call.max_seqlen,
                "; expected no negative number, and at most ", kSequenceBlock, " tokens");
  if (call.bias.has_value()) check_bias(call);
}

}  // namespace

Prepared<VarlenAttentionArgs, Tensor> prepare(const VarlenAttentionCall& call) {
  check(call);
  const Tensor& query = call.query;
  const Tensor& key = call.key;
  Tensor out = empty_like(query);
  PagedAttentionArgs args = {};
  args.dtype = query.dtype();
  args.q = query.data();
  args.k = key.data();
  args.v = call.value.data();
  args.out = out.data();
  args.cu_seqlens_q = args.block_table = call.cu_seqlens.data<int32_t>();
  args.num_tokens = args.num_blocks = query.size(0);
  args.num_seqs = call.cu_seqlens.size(0) - 1;
  args.table_width = args.table_stride = 1;
  args.q_token_stride = query.stride(0);
  args.q_head_stride = query.stride(1);
  args.kv_block_stride = args.kv_token_stride = key.stride(0);
  args.kv_head_stride = key.stride(1);
  args.num_heads = static_cast<int>(query.size(1));
  args.num_kv_heads = static_cast<int>(key.size(1));
  args.head_dim = args.value_dim = static_cast<int>(query.size(2));
  args.block_size = kSequenceBlock;
  if (call.window > 0 && call.window < call.max_seqlen) {
    args.window = args.window_right = static_cast<int>(call.window) + 1;
  }
  args.scale = static_cast<float>(call.scale);
  if (call.bias.has_value()) {
    args.bias = call.bias->data<float>();
    args.bias_stride = call.bias->size(1);
    args.bias_zero = static_cast<int>(args.bias_stride / 2);
  }
  return {{args, call.max_seqlen}, std::move(out)};
}

void check_indices(const VarlenAttentionArgs& args) {
  const int32_t* const starts = args.attention.cu_seqlens_q;
  RTP_LLM_CHECK(starts[0] == 0, "varlen_attention: cu_seqlens starts with ", starts[0],
                "; expected 0");
  for (int64_t s = 0; s < args.attention.num_seqs; ++s) {
    const int64_t length = int64_t{starts[s + 1]} - starts[s];
    RTP_LLM_CHECK(length >= 0 && length <= args.max_seqlen,
                  "varlen_attention: cu_seqlens gives sequence ", s, " ", length,
                  " tokens; expected 0 to max_seqlen, ", args.max_seqlen);
  }
  const int64_t tokens = starts[args.attention.num_seqs];
  RTP_LLM_CHECK(tokens <= args.attention.num_tokens, "varlen_attention: cu_seqlens ends with ",
                tokens, ", but query has ", args.attention.num_tokens, " tokens");
}

}  // namespace rtp_llm::glue
