// Every operator of the engine, declared once. rtp_llm/ops/schema.py holds the same table for
// Python; the hashes of both are compared when the library is loaded.
//
// T tokens, H query heads, Hk KV heads, D head size, B sequences, N blocks, S block size,
// V vocabulary, R sampled rows. Index tensors are int32 unless said.
#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm {
namespace {

constexpr const char* kSchemas[] = {
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    "qk_rms_norm(Tensor(a!) qkv, Tensor q_weight, Tensor k_weight, int num_heads, "
    "int num_kv_heads, float eps) -> ()",
    "silu_and_mul(Tensor x) -> Tensor",
    "gelu_and_mul(Tensor x, bool tanh) -> Tensor",
    "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    "int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    "w8a8_int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    "embedding(Tensor ids, Tensor table) -> Tensor",
    "resolve_tokens(Tensor(a!) ids, Tensor previous) -> ()",
    "rope_kv_write(Tensor(a!) qkv, Tensor positions, Tensor? cos_sin, Tensor(b!)? kv_cache, "
    "Tensor? slot_mapping, int num_heads, int num_kv_heads, int head_dim, bool is_neox, "
    "int rotary_offset=0) -> ()",
    "rotate_and_store(Tensor q, Tensor k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_out, "
    "Tensor(c!)? v_out, Tensor? q_weight, Tensor? k_weight, float eps, Tensor? cos_sin, "
    "Tensor? positions, Tensor? cu_seqlens, Tensor? past_lengths, Tensor? offsets, Tensor? slots, "
    "Tensor(d!)? k_cache, Tensor(e!)? v_cache, Tensor? k_scale, Tensor? v_scale, "
    "Tensor(f!)? scales, bool is_neox, int rotary_offset, int height_pairs, int width_pairs, "
    "bool axes_interleaved, int log_length, int padded_queries) -> ()",
    "paged_attention(Tensor q, Tensor kv_cache, Tensor cu_seqlens_q, Tensor seq_lens, "
    "Tensor block_table, int max_seqlen_q, int max_seqlen_k, float scale, bool causal=True, "
    "int window=0, float soft_cap=0.0, Tensor? sinks=None) -> Tensor",
    "copy_blocks(Tensor(a!) cache, Tensor pairs) -> ()",
    "apply_penalties(Tensor(a!) logits, Tensor tokens, Tensor cu_tokens, "
    "Tensor output_lens, Tensor repetition, Tensor presence, Tensor frequency) -> ()",
    "ban_repeated_ngrams(Tensor(a!) logits, Tensor tokens, Tensor cu_tokens, Tensor ngram_size) "
    "-> ()",
    "add_logit_bias(Tensor(a!) logits, Tensor rows, Tensor ids, Tensor values) -> ()",
    "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor seeds, Tensor steps) -> (Tensor, Tensor)",
    "top_logprobs(Tensor logits, Tensor tokens, int k) -> (Tensor, Tensor, Tensor)",
    // From here on: what a device may lack.
    "linear_add(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) residual) -> ()",
    "norm_linear(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor? bias=None) "
    "-> Tensor",
    "norm_gated_linear(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor? bias, "
    "str activation) -> Tensor",
    "linear_float(Tensor x, Tensor weight) -> Tensor",
    "decode_attention(Tensor qkv, Tensor(a!) kv_cache, Tensor(b!) counters, Tensor positions, "
    "Tensor seq_lens, Tensor slot_mapping, Tensor block_table, float scale, "
    "Tensor? cos_sin=None, Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-06, "
    "bool is_neox=True, int rotary_offset=0, int window=0, float soft_cap=0.0, "
    "Tensor? k_scale=None, Tensor? v_scale=None, bool early=False) -> Tensor",
    "fused_linear_rows(Tensor weight) -> int",
    "norm_fp8(Tensor(a!) residual, Tensor? pending, Tensor weight, float eps) -> "
    "(Tensor, Tensor)",
    "select_topk(Tensor logits, Tensor(a!) ids, Tensor(b!) weights, bool renormalize) -> ()",
    "group_topk(Tensor logits, Tensor? bias, Tensor(a!) ids, Tensor(b!) weights, str scoring, "
    "int num_groups, int top_groups, int group_best, bool renormalize, float scaling) -> ()",
    "fake_balance_expert(Tensor(a!) ids, Tensor(b!) scales, int expert_num, int dp_rank, int "
    "dp_size, int ep_size) -> ()",
    "sort_by_expert(Tensor ids, int num_experts) -> (Tensor, Tensor, Tensor)",
    "grouped_linear(Tensor x, Tensor weight, Tensor offsets) -> Tensor",
    "sum_experts(Tensor y, Tensor places, Tensor weights) -> Tensor",
    "mla_rotate_and_store(Tensor q, Tensor(a!) q_out, Tensor kv, Tensor norm_weight, float eps, "
    "Tensor? cos_sin, Tensor positions, Tensor(b!) cache, Tensor slots, bool is_neox=False) -> ()",
    "mla_attention(Tensor q, Tensor cache, Tensor cu_seqlens_q, Tensor seq_lens, "
    "Tensor block_table, int latent_size, int max_seqlen_q, int max_seqlen_k, float scale) "
    "-> Tensor",
    "mla_decode(Tensor q, Tensor cache, Tensor cu_seqlens_q, Tensor seq_lens, Tensor block_table, "
    "int latent_size, int max_seqlen_k, float scale) -> Tensor",
    // From here on: where a device lacks them, plain PyTorch is their form.
    "fp8_quantize(Tensor x, Tensor? masked_m=None) -> (Tensor, Tensor)",
    "silu_and_mul_fp8(Tensor x, Tensor? masked_m=None) -> (Tensor, Tensor)",
    "fp8_linear(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, int num_sms=-1, "
    "bool? swap_ab=None) -> Tensor",
    "fp8_grouped_masked(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
    "Tensor masked_m, int expected_m, int num_sms=-1, bool? swap_ab=None) -> Tensor",
    "fp8_grouped_contiguous(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
    "Tensor m_indices, int num_sms=-1) -> Tensor",
    "fp8_grouped_ragged(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
    "Tensor starts, Tensor counts, int expected_m, int num_sms=-1, bool? swap_ab=None) -> Tensor",
    "deep_gemm_fp8(Tensor lhs, Tensor rhs_data, Tensor rhs_scale, "
    "int user_deep_gemm_num_sm=-1, bool? swap_ab=None) -> Tensor",
    "deep_gemm_grouped_fp8_masked(Tensor lhs, Tensor rhs_data, Tensor rhs_scale, "
    "Tensor(a!) output, Tensor masked_m, int expected_m, int user_deep_gemm_num_sm=-1, "
    "Tensor? lhs_scale=None, bool? swap_ab=None) -> ()",
    "scatter_fp8(Tensor x, Tensor ids, Tensor places, Tensor offsets) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    "scatter_fp8_ragged(Tensor x, Tensor ids, Tensor places, Tensor offsets) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
};

// 64-bit FNV-1a of the schemas, each followed by a newline; 16 hexadecimal digits.
std::string schema_hash() {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
  for (const char* schema : kSchemas) {
    for (const char* byte = schema; *byte != '\0'; ++byte) add(static_cast<unsigned char>(*byte));
    add('\n');
  }
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(hash >> shift) & 15U];
  return text;
}

int64_t counted_calls(std::string name) { return kernel_calls(name); }

// Forces an instruction set when `force` is not empty; returns the one in use.
std::string cpu_isa(std::string force) {
  if (!force.empty()) force_cpu_isa(force);
  return cpu_isa_name();
}

}  // namespace
}  // namespace rtp_llm

STABLE_TORCH_LIBRARY(rtp_llm, library) {
  for (const char* schema : rtp_llm::kSchemas) library.def(schema);
  library.def("schema_hash() -> str");
  library.def("kernel_calls(str name) -> int");
  library.def("cpu_isa(str force) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CompositeExplicitAutograd, library) {
  rtp_llm::glue::implement_uncounted<rtp_llm::schema_hash>(library, "schema_hash");
  rtp_llm::glue::implement_uncounted<rtp_llm::counted_calls>(library, "kernel_calls");
  rtp_llm::glue::implement_uncounted<rtp_llm::cpu_isa>(library, "cpu_isa");
}
