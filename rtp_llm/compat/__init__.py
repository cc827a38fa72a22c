# SPDX-License-Identifier: Apache-2.0
"""Classes and functions under the reference's names, for other engines: plain tensors in and out.

The engine itself does not use them; they are built on the operators in rtp_llm.ops.
`from rtp_llm import compat; compat.FusedRopeKVCacheDecodeOp(...)`.
"""

from rtp_llm.compat.attention_inputs import (
    AttentionConfigs,
    KvCacheDataType,
    LayerKVCache,
    PyAttentionInputs,
)
from rtp_llm.compat.fused_rope import (
    FusedRopeKVCacheDecodeOp,
    FusedRopeKVCachePrefillOpQKVOut,
    FusedRopeKVCachePrefillOpQOut,
    FusedRopeKVCachePrefillOpSplitOut,
)
from rtp_llm.compat.fused_rope_params import (
    CKAttn,
    FusedRopeAttnParams,
    convert_offset_to_block_array,
)
from rtp_llm.compat.moe_gates import FakeBalanceExpert, GroupTopK, SelectTopk
from rtp_llm.compat.rope_inplace import FusedSetKVBufferArg, apply_rope_with_cos_sin_cache_inplace
from rtp_llm.compat.rope_style import RopeSettings, RopeStyle

__all__ = [
    "AttentionConfigs",
    "CKAttn",
    "FakeBalanceExpert",
    "FusedRopeAttnParams",
    "FusedRopeKVCacheDecodeOp",
    "FusedRopeKVCachePrefillOpQKVOut",
    "FusedRopeKVCachePrefillOpQOut",
    "FusedRopeKVCachePrefillOpSplitOut",
    "FusedSetKVBufferArg",
    "GroupTopK",
    "KvCacheDataType",
    "LayerKVCache",
    "PyAttentionInputs",
    "RopeSettings",
    "RopeStyle",
    "SelectTopk",
    "apply_rope_with_cos_sin_cache_inplace",
    "convert_offset_to_block_array",
]
