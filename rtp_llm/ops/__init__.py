"""The engine's operators as plain functions: `from rtp_llm import ops; ops.rms_norm(x, w, 1e-6)`.

Importing this loads no library; the first call does, or `load()`.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from rtp_llm.ops.schema import OPERATORS

if TYPE_CHECKING:
    from rtp_llm.ops.activation.activation import gelu_and_mul as gelu_and_mul
    from rtp_llm.ops.activation.activation import silu_and_mul as silu_and_mul
    from rtp_llm.ops.attention.decode_attention import (
        decode_attention as decode_attention,
    )
    from rtp_llm.ops.attention.paged_attention import (
        paged_attention as paged_attention,
    )
    from rtp_llm.ops.fp8.fp8_activation import fp8_quantize as fp8_quantize
    from rtp_llm.ops.fp8.fp8_activation import silu_and_mul_fp8 as silu_and_mul_fp8
    from rtp_llm.ops.fp8.fp8_gemm import deep_gemm_fp8 as deep_gemm_fp8
    from rtp_llm.ops.fp8.fp8_gemm import (
        deep_gemm_grouped_fp8_masked as deep_gemm_grouped_fp8_masked,
    )
    from rtp_llm.ops.fp8.fp8_gemm import fp8_grouped_contiguous as fp8_grouped_contiguous
    from rtp_llm.ops.fp8.fp8_gemm import fp8_grouped_masked as fp8_grouped_masked
    from rtp_llm.ops.fp8.fp8_gemm import fp8_grouped_ragged as fp8_grouped_ragged
    from rtp_llm.ops.fp8.fp8_gemm import fp8_linear as fp8_linear
    from rtp_llm.ops.fp8.fp8_norm import norm_fp8 as norm_fp8
    from rtp_llm.ops.fp8.fp8_scatter import scatter_fp8 as scatter_fp8
    from rtp_llm.ops.fp8.fp8_scatter import scatter_fp8_ragged as scatter_fp8_ragged
    from rtp_llm.ops.gemm.linear import int8_linear as int8_linear
    from rtp_llm.ops.gemm.linear import linear as linear
    from rtp_llm.ops.gemm.linear import w8a8_int8_linear as w8a8_int8_linear
    from rtp_llm.ops.gemm.skinny_linear import fused_linear_rows as fused_linear_rows
    from rtp_llm.ops.gemm.skinny_linear import linear_add as linear_add
    from rtp_llm.ops.gemm.skinny_linear import linear_float as linear_float
    from rtp_llm.ops.gemm.skinny_linear import norm_gated_linear as norm_gated_linear
    from rtp_llm.ops.gemm.skinny_linear import norm_linear as norm_linear
    from rtp_llm.ops.kv_cache.copy_blocks import copy_blocks as copy_blocks
    from rtp_llm.ops.lookup.lookup import embedding as embedding
    from rtp_llm.ops.lookup.lookup import resolve_tokens as resolve_tokens
    from rtp_llm.ops.mla.mla import mla_attention as mla_attention
    from rtp_llm.ops.mla.mla import mla_decode as mla_decode
    from rtp_llm.ops.mla.mla import mla_rotate_and_store as mla_rotate_and_store
    from rtp_llm.ops.moe.moe import fake_balance_expert as fake_balance_expert
    from rtp_llm.ops.moe.moe import group_topk as group_topk
    from rtp_llm.ops.moe.moe import grouped_linear as grouped_linear
    from rtp_llm.ops.moe.moe import select_topk as select_topk
    from rtp_llm.ops.moe.moe import sort_by_expert as sort_by_expert
    from rtp_llm.ops.moe.moe import sum_experts as sum_experts
    from rtp_llm.ops.norm.norm import fused_add_rms_norm as fused_add_rms_norm
    from rtp_llm.ops.norm.norm import qk_rms_norm as qk_rms_norm
    from rtp_llm.ops.norm.norm import rms_norm as rms_norm
    from rtp_llm.ops.registry import MissingKernelError as MissingKernelError
    from rtp_llm.ops.registry import allow_reference_ops as allow_reference_ops
    from rtp_llm.ops.registry import cpu_isa as cpu_isa
    from rtp_llm.ops.registry import forced_cpu_isa as forced_cpu_isa
    from rtp_llm.ops.registry import has_kernel as has_kernel
    from rtp_llm.ops.registry import kernel_calls as kernel_calls
    from rtp_llm.ops.registry import load as load
    from rtp_llm.ops.registry import operators_without_kernel as operators_without_kernel
    from rtp_llm.ops.registry import references_allowed as references_allowed
    from rtp_llm.ops.rope.fused_rope import rotate_and_store as rotate_and_store
    from rtp_llm.ops.rope.rope import rope_kv_write as rope_kv_write
    from rtp_llm.ops.rope.rotary_table import RopeConfig as RopeConfig
    from rtp_llm.ops.rope.rotary_table import rope_table as rope_table
    from rtp_llm.ops.sampling.sampling import add_logit_bias as add_logit_bias
    from rtp_llm.ops.sampling.sampling import apply_penalties as apply_penalties
    from rtp_llm.ops.sampling.sampling import ban_repeated_ngrams as ban_repeated_ngrams
    from rtp_llm.ops.sampling.sampling import sample as sample
    from rtp_llm.ops.sampling.sampling import top_logprobs as top_logprobs

_REGISTRY = (
    "MissingKernelError",
    "allow_reference_ops",
    "cpu_isa",
    "forced_cpu_isa",
    "has_kernel",
    "kernel_calls",
    "load",
    "operators_without_kernel",
    "references_allowed",
)
_PUBLIC = {name: f"rtp_llm.ops.{entry.module}" for name, entry in OPERATORS.items()}
_PUBLIC |= dict.fromkeys(_REGISTRY, "rtp_llm.ops.registry")
_PUBLIC |= dict.fromkeys(("RopeConfig", "rope_table"), "rtp_llm.ops.rope.rotary_table")
# What other engines call; the names here go with the next version.
_MOVED = {
    name: f"rtp_llm.compat.{module}"
    for module, names in {
        "attention_inputs": "AttentionConfigs KvCacheDataType LayerKVCache PyAttentionInputs",
        "fused_rope": "FusedRopeKVCacheDecodeOp FusedRopeKVCachePrefillOpQKVOut "
        "FusedRopeKVCachePrefillOpQOut FusedRopeKVCachePrefillOpSplitOut",
        "fused_rope_params": "CKAttn FusedRopeAttnParams convert_offset_to_block_array",
        "moe_gates": "FakeBalanceExpert GroupTopK SelectTopk",
        "rope_inplace": "FusedSetKVBufferArg apply_rope_with_cos_sin_cache_inplace",
        "rope_style": "RopeSettings RopeStyle",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name) or _MOVED.get(name)
    if module is None:
        raise AttributeError(f"module 'rtp_llm.ops' has no attribute {name!r}")
    if name in _MOVED:
        warnings.warn(f"rtp_llm.ops.{name} is now {module}.{name}", DeprecationWarning, 2)
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, *_MOVED])
