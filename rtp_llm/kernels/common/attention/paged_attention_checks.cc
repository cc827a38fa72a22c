// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/paged_attention_checks.h"

namespace rtp_llm::glue {
namespace {

void check_cache(const Tensor& cache, const Tensor& q) {
  check_dim(cache, 5, "paged_attention: kv_cache");
  check_dtype(cache, q.dtype(), "paged_attention: kv_cache");
  RTP_LLM_CHECK(cache.size(0) == 2 && cache.size(2) > 0 && cache.size(3) > 0 &&
                    cache.size(4) == q.size(2) && q.size(1) % cache.size(3) == 0 &&
                    cache.stride(4) == 1,
                "paged_attention: kv_cache is ", cache.describe(), " and q ", q.describe(),
                "; expected [2, blocks, block size, KV heads, head size] and [tokens, query heads, "
                "head size] with query heads a multiple of KV heads");
}

void check_int32(const Tensor& index, int64_t size, const char* what) {
  check_dtype(index, DType::kInt32, what);
  check_sizes(index, {size}, what);
  check_contiguous(index, what);
}

void check(const PagedAttentionCall& call) {
  const Tensor& q = call.q;
  check_dim(q, 3, "paged_attention: q");
  check_float_dtype(q, "paged_attention: q");
  RTP_LLM_CHECK(q.size(2) > 0 && q.stride(2) == 1, "paged_attention: q is ", q.describe(),
                "; expected heads of at least one element, contiguous");
  check_cache(call.kv_cache, q);
  const Tensor& table = call.block_table;
  check_dim(table, 2, "paged_attention: block_table");
  check_dtype(table, DType::kInt32, "paged_attention: block_table");
  check_contiguous_rows(table, "paged_attention: block_table");
  check_int32(call.cu_seqlens_q, table.size(0) + 1, "paged_attention: cu_seqlens_q");
  check_int32(call.seq_lens, table.size(0), "paged_attention: seq_lens");
  RTP_LLM_CHECK(call.window >= 0 && call.window <= INT32_MAX && call.soft_cap >= 0.0,
                "paged_attention: window is ", call.window, " and soft_cap ", call.soft_cap,
                "; expected 0 (none) or a positive value");
  if (!call.sinks.has_value()) return;
  check_dtype(*call.sinks, DType::kFloat32, "paged_attention: sinks");
  check_sizes(*call.sinks, {q.size(1)}, "paged_attention: sinks");
  check_contiguous(*call.sinks, "paged_attention: sinks");
}

PagedAttentionArgs paged_attention_args(const PagedAttentionCall& call) {
  check(call);
  const Tensor& q = call.q;
  const Tensor& cache = call.kv_cache;
  PagedAttentionArgs args = {};
  args.dtype = q.dtype();
  args.q = q.data();
  args.k = cache.data();
  args.v = static_cast<const char*>(cache.data()) + cache.stride(0) * element_size(q.dtype());
  args.sinks = call.sinks.has_value() ? call.sinks->data<float>() : nullptr;
  args.cu_seqlens_q = call.cu_seqlens_q.data<int32_t>();
  args.seq_lens = call.seq_lens.data<int32_t>();
  args.block_table = call.block_table.data<int32_t>();
  args.num_tokens = q.size(0);
  args.num_seqs = call.block_table.size(0);
  args.num_blocks = cache.size(1);
  args.table_width = call.block_table.size(1);
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
  args.kv_block_stride = cache.stride(1);
  args.kv_token_stride = cache.stride(2);
  args.kv_head_stride = cache.stride(3);
  args.table_stride = call.block_table.stride(0);
  args.num_heads = static_cast<int>(q.size(1));
  args.num_kv_heads = static_cast<int>(cache.size(3));
  args.head_dim = static_cast<int>(q.size(2));
  args.value_dim = args.head_dim;
  args.block_size = static_cast<int>(cache.size(2));
  args.window = static_cast<int>(call.window);
  args.scale = static_cast<float>(call.scale);
  args.soft_cap = static_cast<float>(call.soft_cap);
  args.window_right = call.causal ? 1 : 0;
  return args;
}

}  // namespace

Prepared<PagedAttentionArgs, Tensor> prepare(const PagedAttentionCall& call) {
  PagedAttentionArgs args = paged_attention_args(call);
  Tensor out = empty(call.q, {args.num_tokens, args.num_heads, args.value_dim}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
