"""The table of operators: their schemas and where their Python parts are.

The schemas repeat those of rtp_llm/kernels/common/schema.cc; the hashes of both are compared when
the library is loaded. Nothing here imports torch, so that a build can read the hash.

T tokens, H query heads, Hk KV heads, D head size, B sequences, N blocks, S block size,
V vocabulary, R sampled rows. Index tensors are int32 unless said.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorEntry:
    """One operator: `module` ("family.file") holds its function, `module`_reference its reference.

    A family never has the name of an operator: importing it would hide the function of the package.
    """

    schema: str
    module: str
    optional: bool = False  # a device may lack it: layers ask has_kernel() and go another way
    composite: bool = False  # where there is no kernel plain PyTorch is its form, without asking

    @property
    def name(self) -> str:
        """Its name in torch.ops.rtp_llm."""
        return self.schema.partition("(")[0]

    @property
    def reference(self) -> str:
        """ "module:function" of the plain PyTorch reference."""
        return f"rtp_llm.ops.{self.module}_reference:{self.name}_reference"

    @property
    def meta(self) -> str:
        """ "module:function" that gives results of the right shape and dtype without data."""
        return f"rtp_llm.ops.{self.module}_reference:{self.name}_meta"


_SCHEMAS = (
    ("norm.norm", "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor"),
    (
        "norm.norm",
        "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    ),
    (
        "norm.norm",
        "qk_rms_norm(Tensor(a!) qkv, Tensor q_weight, Tensor k_weight, int num_heads, "
        "int num_kv_heads, float eps) -> ()",
    ),
    ("activation.activation", "silu_and_mul(Tensor x) -> Tensor"),
    ("activation.activation", "gelu_and_mul(Tensor x, bool tanh) -> Tensor"),
    ("gemm.linear", "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor"),
    (
        "gemm.linear",
        "int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    ),
    (
        "gemm.linear",
        "w8a8_int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    ),
    ("lookup.lookup", "embedding(Tensor ids, Tensor table) -> Tensor"),
    ("lookup.lookup", "resolve_tokens(Tensor(a!) ids, Tensor previous) -> ()"),
    (
        "rope.rope",
        "rope_kv_write(Tensor(a!) qkv, Tensor positions, Tensor? cos_sin, Tensor(b!)? kv_cache, "
        "Tensor? slot_mapping, int num_heads, int num_kv_heads, int head_dim, bool is_neox, "
        "int rotary_offset=0) -> ()",
    ),
    (
        "rope.fused_rope",
        "rotate_and_store(Tensor q, Tensor k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_out, "
        "Tensor(c!)? v_out, Tensor? q_weight, Tensor? k_weight, float eps, Tensor? cos_sin, "
        "Tensor? positions, Tensor? cu_seqlens, Tensor? past_lengths, Tensor? offsets, "
        "Tensor? slots, Tensor(d!)? k_cache, Tensor(e!)? v_cache, Tensor? k_scale, "
        "Tensor? v_scale, "
        "Tensor(f!)? scales, bool is_neox, int rotary_offset, int height_pairs, int width_pairs, "
        "bool axes_interleaved, int log_length, int padded_queries) -> ()",
    ),
    (
        "attention.paged_attention",
        "paged_attention(Tensor q, Tensor kv_cache, Tensor cu_seqlens_q, Tensor seq_lens, "
        "Tensor block_table, int max_seqlen_q, int max_seqlen_k, float scale, bool causal=True, "
        "int window=0, float soft_cap=0.0, Tensor? sinks=None) -> Tensor",
    ),
    ("kv_cache.copy_blocks", "copy_blocks(Tensor(a!) cache, Tensor pairs) -> ()"),
    (
        "sampling.sampling",
        "apply_penalties(Tensor(a!) logits, Tensor tokens, Tensor cu_tokens, "
        "Tensor output_lens, Tensor repetition, Tensor presence, Tensor frequency) -> ()",
    ),
    (
        "sampling.sampling",
        "ban_repeated_ngrams(Tensor(a!) logits, Tensor tokens, Tensor cu_tokens, "
        "Tensor ngram_size) -> ()",
    ),
    (
        "sampling.sampling",
        "add_logit_bias(Tensor(a!) logits, Tensor rows, Tensor ids, Tensor values) -> ()",
    ),
    (
        "sampling.sampling",
        "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
        "Tensor seeds, Tensor steps) -> (Tensor, Tensor)",
    ),
    (
        "sampling.sampling",
        "top_logprobs(Tensor logits, Tensor tokens, int k) -> (Tensor, Tensor, Tensor)",
    ),
)

_OPTIONAL_SCHEMAS = (
    (
        "gemm.skinny_linear",
        "linear_add(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) residual) -> ()",
    ),
    (
        "gemm.skinny_linear",
        "norm_linear(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor? bias=None) "
        "-> Tensor",
    ),
    (
        "gemm.skinny_linear",
        "norm_gated_linear(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor? bias, "
        "str activation) -> Tensor",
    ),
    ("gemm.skinny_linear", "linear_float(Tensor x, Tensor weight) -> Tensor"),
    (
        "attention.decode_attention",
        "decode_attention(Tensor qkv, Tensor(a!) kv_cache, Tensor(b!) counters, Tensor positions, "
        "Tensor seq_lens, Tensor slot_mapping, Tensor block_table, float scale, "
        "Tensor? cos_sin=None, Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-06, "
        "bool is_neox=True, int rotary_offset=0, int window=0, float soft_cap=0.0, "
        "Tensor? k_scale=None, Tensor? v_scale=None, bool early=False) -> Tensor",
    ),
    ("gemm.skinny_linear", "fused_linear_rows(Tensor weight) -> int"),
    (
        "fp8.fp8_norm",
        "norm_fp8(Tensor(a!) residual, Tensor? pending, Tensor weight, float eps) -> "
        "(Tensor, Tensor)",
    ),
    (
        "moe.moe",
        "select_topk(Tensor logits, Tensor(a!) ids, Tensor(b!) weights, bool renormalize) -> ()",
    ),
    (
        "moe.moe",
        "group_topk(Tensor logits, Tensor? bias, Tensor(a!) ids, Tensor(b!) weights, str "
        "scoring, int num_groups, int top_groups, int group_best, bool renormalize, float "
        "scaling) -> ()",
    ),
    (
        "moe.moe",
        "fake_balance_expert(Tensor(a!) ids, Tensor(b!) scales, int expert_num, int dp_rank, "
        "int dp_size, int ep_size) -> ()",
    ),
    ("moe.moe", "sort_by_expert(Tensor ids, int num_experts) -> (Tensor, Tensor, Tensor)"),
    ("moe.moe", "grouped_linear(Tensor x, Tensor weight, Tensor offsets) -> Tensor"),
    ("moe.moe", "sum_experts(Tensor y, Tensor places, Tensor weights) -> Tensor"),
    (
        "mla.mla",
        "mla_rotate_and_store(Tensor q, Tensor(a!) q_out, Tensor kv, Tensor norm_weight, "
        "float eps, Tensor? cos_sin, Tensor positions, Tensor(b!) cache, Tensor slots, "
        "bool is_neox=False) -> ()",
    ),
    (
        "mla.mla",
        "mla_attention(Tensor q, Tensor cache, Tensor cu_seqlens_q, Tensor seq_lens, "
        "Tensor block_table, int latent_size, int max_seqlen_q, int max_seqlen_k, float scale) "
        "-> Tensor",
    ),
    (
        "mla.mla",
        "mla_decode(Tensor q, Tensor cache, Tensor cu_seqlens_q, Tensor seq_lens, "
        "Tensor block_table, int latent_size, int max_seqlen_k, float scale) -> Tensor",
    ),
)

_COMPOSITE_SCHEMAS = (
    ("fp8.fp8_activation", "fp8_quantize(Tensor x, Tensor? masked_m=None) -> (Tensor, Tensor)"),
    ("fp8.fp8_activation", "silu_and_mul_fp8(Tensor x, Tensor? masked_m=None) -> (Tensor, Tensor)"),
    (
        "fp8.fp8_gemm",
        "fp8_linear(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, int num_sms=-1, "
        "bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "fp8_grouped_masked(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
        "Tensor masked_m, int expected_m, int num_sms=-1, bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "fp8_grouped_contiguous(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
        "Tensor m_indices, int num_sms=-1) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "fp8_grouped_ragged(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
        "Tensor starts, Tensor counts, int expected_m, int num_sms=-1, "
        "bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "deep_gemm_fp8(Tensor lhs, Tensor rhs_data, Tensor rhs_scale, "
        "int user_deep_gemm_num_sm=-1, bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "deep_gemm_grouped_fp8_masked(Tensor lhs, Tensor rhs_data, Tensor rhs_scale, "
        "Tensor(a!) output, Tensor masked_m, int expected_m, int user_deep_gemm_num_sm=-1, "
        "Tensor? lhs_scale=None, bool? swap_ab=None) -> ()",
    ),
    (
        "fp8.fp8_scatter",
        "scatter_fp8(Tensor x, Tensor ids, Tensor places, Tensor offsets) -> "
        "(Tensor, Tensor, Tensor, Tensor)",
    ),
    (
        "fp8.fp8_scatter",
        "scatter_fp8_ragged(Tensor x, Tensor ids, Tensor places, Tensor offsets) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    ),
)

_ENTRIES = (
    *(OperatorEntry(schema, module) for module, schema in _SCHEMAS),
    *(OperatorEntry(schema, module, optional=True) for module, schema in _OPTIONAL_SCHEMAS),
    *(
        OperatorEntry(schema, module, optional=True, composite=True)
        for module, schema in _COMPOSITE_SCHEMAS
    ),
)
OPERATORS: dict[str, OperatorEntry] = {entry.name: entry for entry in _ENTRIES}


def schema_hash() -> str:
    """64-bit FNV-1a of the schemas, each followed by a newline; 16 hexadecimal digits."""
    value = 0xCBF29CE484222325
    for entry in OPERATORS.values():
        for byte in f"{entry.schema}\n".encode():
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"
