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

void check(const AttentionTensors& tensors, const AttentionOptions& options) {
  const Tensor& q = tensors.q;
  check_dim(q, 3, "paged_attention: q");
  check_float_dtype(q, "paged_attention: q");
  RTP_LLM_CHECK(q.size(2) > 0 && q.stride(2) == 1, "paged_attention: q is ", q.describe(),
                "; expected heads of at least one element, contiguous");
  check_cache(tensors.kv_cache, q);
  const Tensor& table = tensors.block_table;
  check_dim(table, 2, "paged_attention: block_table");
  check_dtype(table, DType::kInt32, "paged_attention: block_table");
  check_contiguous_rows(table, "paged_attention: block_table");
  check_int32(tensors.cu_seqlens_q, table.size(0) + 1, "paged_attention: cu_seqlens_q");
  check_int32(tensors.seq_lens, table.size(0), "paged_attention: seq_lens");
  RTP_LLM_CHECK(options.window >= 0 && options.window <= INT32_MAX && options.soft_cap >= 0.0,
                "paged_attention: window is ", options.window, " and soft_cap ", options.soft_cap,
                "; expected 0 (none) or a positive value");
  if (!tensors.sinks.has_value()) return;
  check_dtype(*tensors.sinks, DType::kFloat32, "paged_attention: sinks");
  check_sizes(*tensors.sinks, {q.size(1)}, "paged_attention: sinks");
  check_contiguous(*tensors.sinks, "paged_attention: sinks");
}

}  // namespace

PagedAttentionArgs paged_attention_args(const AttentionTensors& tensors,
                                        const AttentionOptions& options) {
  check(tensors, options);
  const Tensor& q = tensors.q;
  const Tensor& cache = tensors.kv_cache;
  PagedAttentionArgs args = {};
  args.dtype = q.dtype();
  args.q = q.data();
  args.k = cache.data();
  args.v = static_cast<const char*>(cache.data()) + cache.stride(0) * element_size(q.dtype());
  args.sinks = tensors.sinks.has_value() ? tensors.sinks->data<float>() : nullptr;
  args.cu_seqlens_q = tensors.cu_seqlens_q.data<int32_t>();
  args.seq_lens = tensors.seq_lens.data<int32_t>();
  args.block_table = tensors.block_table.data<int32_t>();
  args.num_tokens = q.size(0);
  args.num_seqs = tensors.block_table.size(0);
  args.num_blocks = cache.size(1);
  args.table_width = tensors.block_table.size(1);
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
  args.kv_block_stride = cache.stride(1);
  args.kv_token_stride = cache.stride(2);
  args.kv_head_stride = cache.stride(3);
  args.table_stride = tensors.block_table.stride(0);
  args.num_heads = static_cast<int>(q.size(1));
  args.num_kv_heads = static_cast<int>(cache.size(3));
  args.head_dim = static_cast<int>(q.size(2));
  args.value_dim = args.head_dim;
  args.block_size = static_cast<int>(cache.size(2));
  args.window = static_cast<int>(options.window);
  args.scale = static_cast<float>(options.scale);
  args.soft_cap = static_cast<float>(options.soft_cap);
  args.causal = options.causal;
  return args;
}

}  // namespace rtp_llm::glue
