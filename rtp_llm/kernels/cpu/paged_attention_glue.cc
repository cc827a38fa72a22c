#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/cpu/paged_attention.h"

namespace rtp_llm::cpu {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void check_cache(const Tensor& cache, const Tensor& q) {
  glue::check_dim(cache, 5, "paged_attention: kv_cache");
  glue::check_dtype(cache, q.dtype(), "paged_attention: kv_cache");
  RTP_LLM_CHECK(cache.size(0) == 2 && cache.size(2) > 0 && cache.size(3) > 0 &&
                    cache.size(4) == q.size(2) && q.size(1) % cache.size(3) == 0 &&
                    cache.stride(4) == 1,
                "paged_attention: kv_cache is ", cache.describe(), " and q ", q.describe(),
                "; expected [2, blocks, block size, KV heads, head size] and [tokens, query heads, "
                "head size] with query heads a multiple of KV heads");
}

void check_index(const Tensor& index, int64_t size, const char* what) {
  glue::check_dtype(index, DType::kInt32, what);
  glue::check_sizes(index, {size}, what);
  glue::check_contiguous(index, what);
}

PagedAttentionArgs make_args(const Tensor& q, const Tensor& cache, const Tensor& table,
                             const OptionalTensor& sinks) {
  PagedAttentionArgs args = {};
  args.dtype = q.dtype();
  args.q = q.data();
  args.k = cache.data();
  args.v = static_cast<const char*>(cache.data()) + cache.stride(0) * element_size(q.dtype());
  args.sinks = sinks.has_value() ? sinks->data<float>() : nullptr;
  args.block_table = table.data<int32_t>();
  args.num_tokens = q.size(0);
  args.num_seqs = table.size(0);
  args.num_blocks = cache.size(1);
  args.table_width = table.size(1);
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
  args.kv_block_stride = cache.stride(1);
  args.kv_token_stride = cache.stride(2);
  args.kv_head_stride = cache.stride(3);
  args.table_stride = table.stride(0);
  args.num_heads = static_cast<int>(q.size(1));
  args.num_kv_heads = static_cast<int>(cache.size(3));
  args.head_dim = static_cast<int>(q.size(2));
  args.block_size = static_cast<int>(cache.size(2));
  return args;
}

// The maximum lengths serve devices that may not look into the index tensors.
Tensor paged_attention(const Tensor& q, const Tensor& kv_cache, const Tensor& cu_seqlens_q,
                       const Tensor& seq_lens, const Tensor& block_table, int64_t /*max_seqlen_q*/,
                       int64_t /*max_seqlen_k*/, double scale, bool causal, int64_t window,
                       double soft_cap, const OptionalTensor& sinks) {
  glue::check_dim(q, 3, "paged_attention: q");
  glue::check_float_dtype(q, "paged_attention: q");
  RTP_LLM_CHECK(q.size(2) > 0 && q.stride(2) == 1, "paged_attention: q is ", q.describe(),
                "; expected heads of at least one element, contiguous");
  check_cache(kv_cache, q);
  glue::check_dim(block_table, 2, "paged_attention: block_table");
  glue::check_dtype(block_table, DType::kInt32, "paged_attention: block_table");
  glue::check_contiguous_rows(block_table, "paged_attention: block_table");
  check_index(cu_seqlens_q, block_table.size(0) + 1, "paged_attention: cu_seqlens_q");
  check_index(seq_lens, block_table.size(0), "paged_attention: seq_lens");
  RTP_LLM_CHECK(window >= 0 && window <= INT32_MAX && soft_cap >= 0.0,
                "paged_attention: window is ", window, " and soft_cap ", soft_cap,
                "; expected 0 (none) or a positive value");
  if (sinks.has_value()) {
    glue::check_dtype(*sinks, DType::kFloat32, "paged_attention: sinks");
    glue::check_sizes(*sinks, {q.size(1)}, "paged_attention: sinks");
    glue::check_contiguous(*sinks, "paged_attention: sinks");
  }
  Tensor out = glue::empty(q, {q.size(0), q.size(1), q.size(2)}, q.dtype());
  PagedAttentionArgs args = make_args(q, kv_cache, block_table, sinks);
  args.out = out.data();
  args.cu_seqlens_q = cu_seqlens_q.data<int32_t>();
  args.seq_lens = seq_lens.data<int32_t>();
  args.window = static_cast<int>(window);
  args.scale = static_cast<float>(scale);
  args.soft_cap = static_cast<float>(soft_cap);
  args.causal = causal;
  check_paged_attention(args);
  const ParallelFor& parallel = glue::parallel_for();
  const size_t bytes = paged_attention_scratch_bytes(args, parallel.num_threads());
  // torch aligns to 64 bytes.
  const Tensor scratch = glue::empty(q, {static_cast<int64_t>(bytes)}, DType::kInt8);
  run_paged_attention(args, scratch.data(), parallel);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<paged_attention>(library, "paged_attention");
}

}  // namespace rtp_llm::cpu
