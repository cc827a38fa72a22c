// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of decode_attention and describes them to kernels.
#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/decode_attention.h"

namespace rtp_llm::glue {
namespace {

void take_cache(DecodeAttentionArgs& args, const Tensor& qkv, const Tensor& cache) {
  check_dim(cache, 5, "decode_attention: kv_cache");
  RTP_LLM_CHECK(cache.dtype() == qkv.dtype() || cache.dtype() == DType::kFloat8E4m3fn,
                "decode_attention: kv_cache is ", cache.describe(), "; expected ",
                dtype_name(qkv.dtype()), " or float8_e4m3fn");
  const int64_t block_size = cache.size(2);
  RTP_LLM_CHECK(cache.size(0) == 2 && cache.size(1) > 0 && cache.size(1) <= INT32_MAX &&
                    block_size >= 8 && block_size <= INT32_MAX &&
                    (block_size & (block_size - 1)) == 0 && cache.size(3) > 0 && cache.size(4) > 0,
                "decode_attention: kv_cache is ", cache.describe(),
                "; expected [2, blocks, block size, KV heads, head size] with a block size that is "
                "a power of two from 8 on");
  const int64_t width = cache.size(3) * cache.size(4);
  RTP_LLM_CHECK(qkv.size(1) % cache.size(4) == 0 && qkv.size(1) > 2 * width &&
                    (qkv.size(1) - 2 * width) % width == 0,
                "decode_attention: qkv is ", qkv.describe(), " and kv_cache ", cache.describe(),
                "; expected rows of query heads, a multiple of the KV heads, then key and value "
                "heads");
  check_inner_contiguous(cache, 1, "decode_attention: kv_cache");
  args.cache_dtype = cache.dtype();
  args.k_cache = cache.data();
  args.v_cache = static_cast<char*>(cache.data()) + cache.stride(0) * element_size(cache.dtype());
  args.num_blocks = cache.size(1);
  while (int64_t{1} << args.block_bits < block_size) ++args.block_bits;
  args.num_kv_heads = static_cast<int>(cache.size(3));
  args.head_dim = static_cast<int>(cache.size(4));
  args.num_heads = static_cast<int>(qkv.size(1) / cache.size(4) - 2 * cache.size(3));
  args.kv_block_stride = cache.stride(1);
  args.kv_token_stride = cache.stride(2);
  args.kv_head_stride = cache.stride(3);
}

void take_indices(DecodeAttentionArgs& args, const DecodeAttentionCall& call) {
  const auto vector = [&](const Tensor& index, const char* what) {
    check_index(index, what);
    check_sizes(index, {args.num_seqs}, what);
    return index.data<int32_t>();
  };
  args.positions = vector(call.positions, "decode_attention: positions");
  args.seq_lens = vector(call.seq_lens, "decode_attention: seq_lens");
  args.slots = vector(call.slot_mapping, "decode_attention: slot_mapping");
  const Tensor& table = call.block_table;
  check_dim(table, 2, "decode_attention: block_table");
  check_dtype(table, DType::kInt32, "decode_attention: block_table");
  check_sizes(table, {args.num_seqs, table.size(1)}, "decode_attention: block_table");
  check_contiguous_rows(table, "decode_attention: block_table");
  args.block_table = table.data<int32_t>();
  args.table_width = table.size(1);
  args.table_stride = table.stride(0);
  check_index(call.counters, "decode_attention: counters");
  RTP_LLM_CHECK(call.counters.numel() >= args.num_seqs * args.num_kv_heads,
                "decode_attention: counters is ", call.counters.describe(), "; expected ",
                args.num_seqs * args.num_kv_heads, " numbers at least");
  args.counters = call.counters.data<int32_t>();
}

void take_rotation(DecodeAttentionArgs& args, const OptionalTensor& table,
                   const DecodeAttentionCall& call) {
  args.is_neox = call.is_neox;
  if (!table.has_value()) return;
  check_dtype(*table, DType::kFloat32, "decode_attention: cos_sin");
  check_dim(*table, 2, "decode_attention: cos_sin");
  check_contiguous(*table, "decode_attention: cos_sin");
  RTP_LLM_CHECK(table->size(1) % 2 == 0 && call.rotary_offset >= 0 &&
                    call.rotary_offset + table->size(1) <= args.head_dim,
                "decode_attention: cos_sin is ", table->describe(), " and rotary_offset ",
                call.rotary_offset, "; expected an even rotary size within heads of ",
                args.head_dim);
  args.cos_sin = table->data<float>();
  args.num_positions = table->size(0);
  args.rotary_dim = static_cast<int>(table->size(1));
  args.rotary_offset = static_cast<int>(call.rotary_offset);
}

const void* weight_of(const DecodeAttentionArgs& args, const OptionalTensor& weight,
                      const char* what) {
  if (!weight.has_value()) return nullptr;
  check_dtype(*weight, args.dtype, what);
  check_sizes(*weight, {args.head_dim}, what);
  check_contiguous(*weight, what);
  return weight->data();
}

const float* scale_of(const OptionalTensor& scale, const char* what) {
  if (!scale.has_value()) return nullptr;
  check_dtype(*scale, DType::kFloat32, what);
  RTP_LLM_CHECK(scale->numel() == 1, what, " is ", scale->describe(), "; expected one number");
  return scale->data<float>();
}

}  // namespace

Prepared<DecodeAttentionArgs, Tensor> prepare(const DecodeAttentionCall& call) {
  const Tensor& qkv = call.qkv;
  check_dim(qkv, 2, "decode_attention: qkv");
  check_contiguous_rows(qkv, "decode_attention: qkv");
  RTP_LLM_CHECK(qkv.dtype() == DType::kBFloat16 || qkv.dtype() == DType::kFloat16,
                "decode_attention: qkv is ", qkv.describe(), "; expected bfloat16 or float16");
  DecodeAttentionArgs args = {};
  args.dtype = qkv.dtype();
  args.qkv = qkv.data();
  args.num_seqs = qkv.size(0);
  args.qkv_stride = qkv.stride(0);
  take_cache(args, qkv, call.kv_cache);
  take_indices(args, call);
  take_rotation(args, call.cos_sin, call);
  args.q_weight = weight_of(args, call.q_weight, "decode_attention: q_weight");
  args.k_weight = weight_of(args, call.k_weight, "decode_attention: k_weight");
  RTP_LLM_CHECK((args.q_weight == nullptr) == (args.k_weight == nullptr),
                "decode_attention: q_weight and k_weight go together; one of them is None");
  args.k_scale = scale_of(call.k_scale, "decode_attention: k_scale");
  args.v_scale = scale_of(call.v_scale, "decode_attention: v_scale");
  RTP_LLM_CHECK(call.window >= 0 && call.window <= INT32_MAX && call.soft_cap >= 0.0,
                "decode_attention: window is ", call.window, " and soft_cap ", call.soft_cap,
                "; expected 0 (none) or a positive value");
  args.window = static_cast<int>(call.window);
  args.early = call.early;
  args.eps = static_cast<float>(call.eps);
  args.norm_offset = static_cast<float>(call.norm_offset);
  args.scale = static_cast<float>(call.scale);
  args.soft_cap = static_cast<float>(call.soft_cap);
  Tensor out =
      empty(call.qkv, {args.num_seqs, int64_t{args.num_heads} * args.head_dim}, args.dtype);
  args.out = out.data();
  return {args, std::move(out)};
}

}  // namespace rtp_llm::glue
