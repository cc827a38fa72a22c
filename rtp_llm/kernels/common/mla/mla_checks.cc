// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/mla/mla_checks.h"

namespace rtp_llm::glue {
namespace {

void take_queries(MlaRotateAndStoreArgs& args, const Tensor& q, const Tensor& out) {
  check_float_dtype(q, "mla_rotate_and_store: q");
  check_dim(q, 3, "mla_rotate_and_store: q");
  check_inner_contiguous(q, 1, "mla_rotate_and_store: q");
  check_dtype(out, q.dtype(), "mla_rotate_and_store: q_out");
  check_same_sizes(out, q, "mla_rotate_and_store: q_out");
  check_inner_contiguous(out, 1, "mla_rotate_and_store: q_out");
  RTP_LLM_CHECK(q.size(2) > 0 && q.size(2) % 2 == 0, "mla_rotate_and_store: q is ", q.describe(),
                "; expected an even rotated size");
  args.dtype = q.dtype();
  args.q = q.data();
  args.q_out = out.data();
  args.tokens = q.size(0);
  args.num_heads = q.size(1);
  args.rope_size = q.size(2);
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
  args.out_token_stride = out.stride(0);
  args.out_head_stride = out.stride(1);
}

void take_latents(MlaRotateAndStoreArgs& args, const Tensor& kv, const Tensor& weight, double eps) {
  check_dtype(kv, args.dtype, "mla_rotate_and_store: kv");
  check_dim(kv, 2, "mla_rotate_and_store: kv");
  check_contiguous_rows(kv, "mla_rotate_and_store: kv");
  RTP_LLM_CHECK(kv.size(0) == args.tokens && kv.size(1) > args.rope_size,
                "mla_rotate_and_store: kv is ", kv.describe(), "; expected ", args.tokens,
                " rows of a latent and a key of ", args.rope_size);
  args.kv = kv.data();
  args.kv_stride = kv.stride(0);
  args.latent_size = kv.size(1) - args.rope_size;
  args.eps = static_cast<float>(eps);
  check_dtype(weight, args.dtype, "mla_rotate_and_store: norm_weight");
  check_sizes(weight, {args.latent_size}, "mla_rotate_and_store: norm_weight");
  check_contiguous(weight, "mla_rotate_and_store: norm_weight");
  args.norm_weight = weight.data();
}

void take_rotation(MlaRotateAndStoreArgs& args, const OptionalTensor& cos_sin,
                   const Tensor& positions, bool is_neox) {
  check_index(positions, "mla_rotate_and_store: positions");
  check_sizes(positions, {args.tokens}, "mla_rotate_and_store: positions");
  args.positions = positions.data<int32_t>();
  args.is_neox = is_neox;
  if (!cos_sin.has_value()) return;
  check_dtype(*cos_sin, DType::kFloat32, "mla_rotate_and_store: cos_sin");
  check_dim(*cos_sin, 2, "mla_rotate_and_store: cos_sin");
  check_sizes(*cos_sin, {cos_sin->size(0), args.rope_size}, "mla_rotate_and_store: cos_sin");
  check_contiguous(*cos_sin, "mla_rotate_and_store: cos_sin");
  args.cos_sin = cos_sin->data<float>();
  args.num_positions = cos_sin->size(0);
}

void check_cache(const Tensor& cache, DType dtype, const char* what) {
  check_dtype(cache, dtype, what);
  check_dim(cache, 3, what);
  check_inner_contiguous(cache, 1, what);
  RTP_LLM_CHECK(cache.size(1) > 0 && cache.size(1) <= INT32_MAX, what, " is ", cache.describe(),
                "; expected blocks of at least one token");
}

void check_int32(const Tensor& index, int64_t size, const char* what) {
  check_index(index, what);
  check_sizes(index, {size}, what);
}

void check_attention(const MlaAttentionTensors& tensors, int64_t latent_size) {
  const Tensor& q = tensors.q;
  check_float_dtype(q, "mla_attention: q");
  check_dim(q, 3, "mla_attention: q");
  check_inner_contiguous(q, 1, "mla_attention: q");
  const Tensor& cache = tensors.cache;
  check_cache(cache, q.dtype(), "mla_attention: cache");
  check_sizes(cache, {cache.size(0), cache.size(1), q.size(2)}, "mla_attention: cache");
  RTP_LLM_CHECK(latent_size > 0 && latent_size <= q.size(2), "mla_attention: latent_size is ",
                latent_size, "; expected at most the ", q.size(2), " elements of a query head");
  const Tensor& table = tensors.block_table;
  check_dim(table, 2, "mla_attention: block_table");
  check_dtype(table, DType::kInt32, "mla_attention: block_table");
  check_contiguous_rows(table, "mla_attention: block_table");
  check_int32(tensors.cu_seqlens_q, table.size(0) + 1, "mla_attention: cu_seqlens_q");
  check_int32(tensors.seq_lens, table.size(0), "mla_attention: seq_lens");
}

}  // namespace

Prepared<MlaRotateAndStoreArgs, void> prepare(const MlaRotateAndStoreCall& call) {
  MlaRotateAndStoreArgs args{};
  take_queries(args, call.q, call.q_out);
  take_latents(args, call.kv, call.norm_weight, call.eps);
  take_rotation(args, call.cos_sin, call.positions, call.is_neox);
  const Tensor& cache = call.cache;
  check_cache(cache, args.dtype, "mla_rotate_and_store: cache");
  check_sizes(cache, {cache.size(0), cache.size(1), args.latent_size + args.rope_size},
              "mla_rotate_and_store: cache");
  check_int32(call.slots, args.tokens, "mla_rotate_and_store: slots");
  args.cache = cache.data();
  args.slots = call.slots.data<int32_t>();
  args.num_slots = cache.size(0) * cache.size(1);
  args.block_size = cache.size(1);
  args.block_stride = cache.stride(0);
  args.slot_stride = cache.stride(1);
  return {args};
}

void check_indices(const MlaRotateAndStoreArgs& args) {
  if (args.cos_sin != nullptr) {
    check_range(args.positions, args.tokens, 0, args.num_positions,
                "mla_rotate_and_store: positions", "0 <= position < ", ", the rows of cos_sin");
  }
  check_range(args.slots, args.tokens, -1, args.num_slots, "mla_rotate_and_store: slots",
              "-1 (not stored) or 0 <= slot < ", "");
}

PagedAttentionArgs mla_attention_args(const MlaAttentionTensors& tensors, int64_t latent_size,
                                      double scale) {
  check_attention(tensors, latent_size);
  const Tensor& q = tensors.q;
  const Tensor& cache = tensors.cache;
  const Tensor& table = tensors.block_table;
  PagedAttentionArgs args = {};
  args.dtype = q.dtype();
  args.q = q.data();
  args.k = args.v = cache.data();
  args.cu_seqlens_q = tensors.cu_seqlens_q.data<int32_t>();
  args.seq_lens = tensors.seq_lens.data<int32_t>();
  args.block_table = table.data<int32_t>();
  args.num_tokens = q.size(0);
  args.num_seqs = table.size(0);
  args.num_blocks = cache.size(0);
  args.table_width = table.size(1);
  args.q_token_stride = q.stride(0);
  args.q_head_stride = q.stride(1);
  args.kv_block_stride = cache.stride(0);
  args.kv_token_stride = cache.stride(1);
  args.table_stride = table.stride(0);
  args.num_heads = static_cast<int>(q.size(1));
  args.num_kv_heads = 1;
  args.head_dim = static_cast<int>(q.size(2));
  args.value_dim = static_cast<int>(latent_size);
  args.block_size = static_cast<int>(cache.size(1));
  args.scale = static_cast<float>(scale);
  args.window_right = 1;
  return args;
}

Prepared<MlaAttentionArgs, Tensor> prepare(const MlaAttentionCall& call) {
  MlaAttentionArgs args =
      mla_attention_args({call.q, call.cache, call.cu_seqlens_q, call.seq_lens, call.block_table},
                         call.latent_size, call.scale);
  Tensor out = empty(call.q, {args.num_tokens, args.num_heads, args.value_dim}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
