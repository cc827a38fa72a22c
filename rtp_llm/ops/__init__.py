"""The engine's operators as plain functions: `from rtp_llm import ops; ops.rms_norm(x, w, 1e-6)`.

Importing this loads no library; the first call does, or `load()`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rtp_llm.ops.schema import OPERATORS

if TYPE_CHECKING:
    from rtp_llm.ops.activation import gelu_and_mul as gelu_and_mul
    from rtp_llm.ops.activation import silu_and_mul as silu_and_mul
    from rtp_llm.ops.attention import paged_attention as paged_attention
    from rtp_llm.ops.attention_inputs import AttentionConfigs as AttentionConfigs
    from rtp_llm.ops.attention_inputs import KvCacheDataType as KvCacheDataType
    from rtp_llm.ops.attention_inputs import LayerKVCache as LayerKVCache
    from rtp_llm.ops.attention_inputs import PyAttentionInputs as PyAttentionInputs
    from rtp_llm.ops.cache import copy_blocks as copy_blocks
    from rtp_llm.ops.decode import decode_attention as decode_attention
    from rtp_llm.ops.fp8_activation import fp8_quantize as fp8_quantize
    from rtp_llm.ops.fp8_activation import silu_and_mul_fp8 as silu_and_mul_fp8
    from rtp_llm.ops.fp8_gemm import deep_gemm_fp8 as deep_gemm_fp8
    from rtp_llm.ops.fp8_gemm import (
        deep_gemm_grouped_fp8_masked as deep_gemm_grouped_fp8_masked,
    )
    from rtp_llm.ops.fp8_gemm import fp8_grouped_contiguous as fp8_grouped_contiguous
    from rtp_llm.ops.fp8_gemm import fp8_grouped_masked as fp8_grouped_masked
    from rtp_llm.ops.fp8_gemm import fp8_grouped_ragged as fp8_grouped_ragged
    from rtp_llm.ops.fp8_gemm import fp8_linear as fp8_linear
    from rtp_llm.ops.fp8_norm import norm_fp8 as norm_fp8
    from rtp_llm.ops.fp8_scatter import scatter_fp8 as scatter_fp8
    from rtp_llm.ops.fp8_scatter import scatter_fp8_ragged as scatter_fp8_ragged
    from rtp_llm.ops.fused_gemm import fused_linear_rows as fused_linear_rows
    from rtp_llm.ops.fused_gemm import linear_add as linear_add
    from rtp_llm.ops.fused_gemm import linear_float as linear_float
    from rtp_llm.ops.fused_gemm import norm_gated_linear as norm_gated_linear
    from rtp_llm.ops.fused_gemm import norm_linear as norm_linear
    from rtp_llm.ops.fused_rope import FusedRopeKVCacheDecodeOp as FusedRopeKVCacheDecodeOp
    from rtp_llm.ops.fused_rope import (
        FusedRopeKVCachePrefillOpQKVOut as FusedRopeKVCachePrefillOpQKVOut,
    )
    from rtp_llm.ops.fused_rope import (
        FusedRopeKVCachePrefillOpQOut as FusedRopeKVCachePrefillOpQOut,
    )
    from rtp_llm.ops.fused_rope import (
        FusedRopeKVCachePrefillOpSplitOut as FusedRopeKVCachePrefillOpSplitOut,
    )
    from rtp_llm.ops.fused_rope_params import CKAttn as CKAttn
    from rtp_llm.ops.fused_rope_params import FusedRopeAttnParams as FusedRopeAttnParams
    from rtp_llm.ops.fused_rope_params import (
        convert_offset_to_block_array as convert_offset_to_block_array,
    )
    from rtp_llm.ops.gemm import int8_linear as int8_linear
    from rtp_llm.ops.gemm import linear as linear
    from rtp_llm.ops.gemm import w8a8_int8_linear as w8a8_int8_linear
    from rtp_llm.ops.lookup import embedding as embedding
    from rtp_llm.ops.lookup import resolve_tokens as resolve_tokens
    from rtp_llm.ops.mla import mla_attention as mla_attention
    from rtp_llm.ops.mla import mla_decode as mla_decode
    from rtp_llm.ops.mla import mla_rotate_and_store as mla_rotate_and_store
    from rtp_llm.ops.moe import fake_balance_expert as fake_balance_expert
    from rtp_llm.ops.moe import group_topk as group_topk
    from rtp_llm.ops.moe import grouped_linear as grouped_linear
    from rtp_llm.ops.moe import select_topk as select_topk
    from rtp_llm.ops.moe import sort_by_expert as sort_by_expert
    from rtp_llm.ops.moe import sum_experts as sum_experts
    from rtp_llm.ops.moe_gates import FakeBalanceExpert as FakeBalanceExpert
    from rtp_llm.ops.moe_gates import GroupTopK as GroupTopK
    from rtp_llm.ops.moe_gates import SelectTopk as SelectTopk
    from rtp_llm.ops.norm import fused_add_rms_norm as fused_add_rms_norm
    from rtp_llm.ops.norm import qk_rms_norm as qk_rms_norm
    from rtp_llm.ops.norm import rms_norm as rms_norm
    from rtp_llm.ops.registry import MissingKernelError as MissingKernelError
    from rtp_llm.ops.registry import allow_reference_ops as allow_reference_ops
    from rtp_llm.ops.registry import cpu_isa as cpu_isa
    from rtp_llm.ops.registry import forced_cpu_isa as forced_cpu_isa
    from rtp_llm.ops.registry import has_kernel as has_kernel
    from rtp_llm.ops.registry import kernel_calls as kernel_calls
    from rtp_llm.ops.registry import load as load
    from rtp_llm.ops.registry import operators_without_kernel as operators_without_kernel
    from rtp_llm.ops.registry import references_allowed as references_allowed
    from rtp_llm.ops.rope import rope_kv_write as rope_kv_write
    from rtp_llm.ops.rope_inplace import FusedSetKVBufferArg as FusedSetKVBufferArg
    from rtp_llm.ops.rope_inplace import (
        apply_rope_with_cos_sin_cache_inplace as apply_rope_with_cos_sin_cache_inplace,
    )
    from rtp_llm.ops.rope_style import RopeSettings as RopeSettings
    from rtp_llm.ops.rope_style import RopeStyle as RopeStyle
    from rtp_llm.ops.rotary_table import RopeConfig as RopeConfig
    from rtp_llm.ops.rotary_table import rope_table as rope_table
    from rtp_llm.ops.rotation import rotate_and_store as rotate_and_store
    from rtp_llm.ops.sampling import add_logit_bias as add_logit_bias
    from rtp_llm.ops.sampling import apply_penalties as apply_penalties
    from rtp_llm.ops.sampling import ban_repeated_ngrams as ban_repeated_ngrams
    from rtp_llm.ops.sampling import sample as sample
    from rtp_llm.ops.sampling import top_logprobs as top_logprobs

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
for _module, _names in {
    "attention_inputs": (
        "AttentionConfigs",
        "KvCacheDataType",
        "LayerKVCache",
        "PyAttentionInputs",
    ),
    "fused_rope": (
        "FusedRopeKVCacheDecodeOp",
        "FusedRopeKVCachePrefillOpQKVOut",
        "FusedRopeKVCachePrefillOpQOut",
        "FusedRopeKVCachePrefillOpSplitOut",
    ),
    "fused_rope_params": ("CKAttn", "FusedRopeAttnParams", "convert_offset_to_block_array"),
    "moe_gates": ("FakeBalanceExpert", "GroupTopK", "SelectTopk"),
    "rope_inplace": ("FusedSetKVBufferArg", "apply_rope_with_cos_sin_cache_inplace"),
    "rope_style": ("RopeSettings", "RopeStyle"),
    "rotary_table": ("RopeConfig", "rope_table"),
}.items():
    _PUBLIC |= dict.fromkeys(_names, f"rtp_llm.ops.{_module}")


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'rtp_llm.ops' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
