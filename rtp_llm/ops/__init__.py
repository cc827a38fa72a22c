# SPDX-License-Identifier: Apache-2.0
"""The engine's operators as plain functions: `from rtp_llm import ops; ops.rms_norm(x, w, 1e-6)`.

Importing this loads no library; the first call does, or `load()`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rtp_llm.ops.schema import OPERATORS

if TYPE_CHECKING:  # what type checkers see of __getattr__ below
    from rtp_llm.ops.activation.activation import *  # noqa: F403
    from rtp_llm.ops.activation.sigmoid_gate import *  # noqa: F403
    from rtp_llm.ops.attention.decode_attention import *  # noqa: F403
    from rtp_llm.ops.attention.paged_attention import *  # noqa: F403
    from rtp_llm.ops.attention.triton_attention import *  # noqa: F403
    from rtp_llm.ops.attention.varlen_attention import *  # noqa: F403
    from rtp_llm.ops.collective.all_reduce import *  # noqa: F403
    from rtp_llm.ops.collective.best_token import *  # noqa: F403
    from rtp_llm.ops.collective.token_exchange import *  # noqa: F403
    from rtp_llm.ops.fp8.fp8_activation import *  # noqa: F403
    from rtp_llm.ops.fp8.fp8_channel import *  # noqa: F403
    from rtp_llm.ops.fp8.fp8_gemm import *  # noqa: F403
    from rtp_llm.ops.fp8.fp8_norm import *  # noqa: F403
    from rtp_llm.ops.fp8.fp8_scatter import *  # noqa: F403
    from rtp_llm.ops.fp8.fp8_weight import *  # noqa: F403
    from rtp_llm.ops.gemm.linear import *  # noqa: F403
    from rtp_llm.ops.gemm.packed_linear import *  # noqa: F403
    from rtp_llm.ops.gemm.skinny_linear import *  # noqa: F403
    from rtp_llm.ops.gemm.tiled_wna16 import *  # noqa: F403
    from rtp_llm.ops.gemm.wna16 import *  # noqa: F403
    from rtp_llm.ops.gguf.gguf_linear import *  # noqa: F403
    from rtp_llm.ops.kv_cache.copy_blocks import *  # noqa: F403
    from rtp_llm.ops.kv_cache.widen_pages import *  # noqa: F403
    from rtp_llm.ops.linear_attention.linear_attention import *  # noqa: F403
    from rtp_llm.ops.linear_attention.triton_linear_attention import *  # noqa: F403
    from rtp_llm.ops.lookup.bert_embedding import *  # noqa: F403
    from rtp_llm.ops.lookup.lookup import *  # noqa: F403
    from rtp_llm.ops.mla.indexer import *  # noqa: F403
    from rtp_llm.ops.mla.mla import *  # noqa: F403
    from rtp_llm.ops.mla.triton_mla import *  # noqa: F403
    from rtp_llm.ops.moe.moe import *  # noqa: F403
    from rtp_llm.ops.moe.mxfp4 import *  # noqa: F403
    from rtp_llm.ops.moe.mxfp4_experts import *  # noqa: F403
    from rtp_llm.ops.moe.triton_biased import *  # noqa: F403
    from rtp_llm.ops.moe.triton_moe import *  # noqa: F403
    from rtp_llm.ops.norm.norm import *  # noqa: F403
    from rtp_llm.ops.registry import MissingKernelError as MissingKernelError
    from rtp_llm.ops.registry import allow_reference_ops as allow_reference_ops
    from rtp_llm.ops.registry import cpu_isa as cpu_isa
    from rtp_llm.ops.registry import forced_cpu_isa as forced_cpu_isa
    from rtp_llm.ops.registry import has_kernel as has_kernel
    from rtp_llm.ops.registry import kernel_calls as kernel_calls
    from rtp_llm.ops.registry import load as load
    from rtp_llm.ops.registry import operators_without_kernel as operators_without_kernel
    from rtp_llm.ops.registry import references_allowed as references_allowed
    from rtp_llm.ops.rope.fused_rope import *  # noqa: F403
    from rtp_llm.ops.rope.rope import *  # noqa: F403
    from rtp_llm.ops.rope.rotary_table import *  # noqa: F403
    from rtp_llm.ops.sampling.beams import *  # noqa: F403
    from rtp_llm.ops.sampling.rejection import *  # noqa: F403
    from rtp_llm.ops.sampling.sampling import *  # noqa: F403
    from rtp_llm.ops.speculative.accept import *  # noqa: F403
    from rtp_llm.ops.speculative.ngram import *  # noqa: F403

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


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'rtp_llm.ops' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
