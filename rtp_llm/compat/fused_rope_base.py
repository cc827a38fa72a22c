# SPDX-License-Identifier: Apache-2.0
"""The common base of the fused RoPE operators: arguments of a layer, and tensors of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from rtp_llm.compat.attention_inputs import (
    AttentionConfigs,
    KvCacheDataType,
    LayerKVCache,
    PyAttentionInputs,
)
from rtp_llm.compat.cache_layout import CacheLayout, vector_rows
from rtp_llm.compat.fused_rope_params import FusedRopeAttnParams, convert_offset_to_block_array
from rtp_llm.compat.rope_style import RopeStyle
from rtp_llm.ops.rope.fused_rope import rotate_and_store
from rtp_llm.ops.rope.rotary_table import RopeConfig, rope_table

_INT32_MAX = 2**31 - 1


class FusedRopeBase(ABC):
    """The base class of the operators."""

    def __init__(self, attn_configs: AttentionConfigs) -> None:
        self.config = attn_configs
        self._table = attn_configs.rope_config.table()
        self._heads = attn_configs.head_num + 2 * attn_configs.kv_head_num
        self._tables: dict[torch.device, Tensor] = {}

    def prepare(self, attn_inputs: PyAttentionInputs) -> FusedRopeAttnParams:
        """Prepare a step, once; never waits. RuntimeError if the operator does not support it."""
        return self.step(attn_inputs, None)

    @abstractmethod
    def step(self, inputs: PyAttentionInputs, output: Tensor | None) -> FusedRopeAttnParams:
        """Like prepare(), with layers that write to `output` (None: a new buffer)."""

    def offsets_of(self, table: Tensor) -> Tensor:
        """The block offset array of a block table [B, M]."""
        return convert_offset_to_block_array(table, self.config.num_kernel_blocks)

    def _common(self, qkv: Tensor, kv_cache: LayerKVCache | None) -> dict[str, Any]:
        """Arguments that do not depend on the kind of operator."""
        config, rope = self.config, self.config.rope_config
        width = self._heads * config.size_per_head
        if qkv.dim() != 2 or qkv.shape[1] != width:
            raise RuntimeError(f"qkv is {list(qkv.shape)}; expected [tokens, {width}]")
        heads = qkv.view(qkv.shape[0], self._heads, config.size_per_head)
        q, k, v = self._parts(heads)
        arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "eps": config.qk_norm_eps}
        if config.use_logn_attn:
            arguments["log_length"] = config.logn_train_length
        if self._table is not None:
            arguments |= {
                "cos_sin": self._table_on(self._table, qkv.device),
                "is_neox": rope.is_neox,
                "rotary_offset": rope.offset,
            }
        if rope.style == RopeStyle.Mrope:
            arguments |= {
                "height_pairs": rope.mrope_dim2,
                "width_pairs": rope.mrope_dim3,
                "axes_interleaved": rope.mrope_interleaved,
            }
        return arguments if kv_cache is None else arguments | self._cache(kv_cache)

    @staticmethod
    def _run(arguments: dict[str, Any], **results: Any) -> None:
        """Run the kernel of a layer; skips empty batches, which may have no block table."""
        if len(arguments["q"]):
            rotate_and_store(**arguments, **results)

    def _parts(self, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split [T, H + 2 Hk, D] into query, key and value heads."""
        keys = self.config.head_num
        values = keys + self.config.kv_head_num
        return heads[:, :keys], heads[:, keys:values], heads[:, values:]

    def _table_on(self, style: RopeConfig, device: torch.device) -> Tensor:
        table = self._tables.get(device)
        if table is None:
            table = rope_table(style, self.config.max_seq_len, device)
            self._tables[device] = table
        return table

    def _cache(self, kv_cache: LayerKVCache) -> dict[str, Tensor | None]:
        """The cache as rows, which offsets name."""
        layout, base = self.config.cache_layout, kv_cache.kv_cache_base
        keys = values = self._rows(base, (self.config.size_per_head,))
        if layout is not CacheLayout.PLAIN:
            keys, values = vector_rows(base, layout)
        scales = kv_cache.kv_scale_base
        if self.config.kv_cache_dtype == KvCacheDataType.FP8 and scales is None:
            raise RuntimeError("an FP8 cache has no scales; expected kv_scale_base")
        if scales is not None:
            scales = self._rows(scales, ())
        return {"k_cache": keys, "v_cache": values, "scales": scales}

    def _rows(self, base: Tensor, inner: tuple[int, ...]) -> Tensor:
        config, block = self.config, self.config.kernel_block
        blocks = config.num_kernel_blocks
        if base.numel() == 0:
            raise RuntimeError(f"the cache is {list(base.shape)}; expected storage")
        if blocks is None:
            shape = (base.shape[0], 2, config.kv_head_num, block, *inner)
            if base.shape != shape:
                raise RuntimeError(f"the cache is {list(base.shape)}; expected {list(shape)}")
            if 2 * base.shape[0] - 1 > _INT32_MAX:
                raise RuntimeError(f"{base.shape[0]} blocks are more than int32 offsets reach")
            return base.flatten(0, 1).transpose(1, 2)
        ratio = config.tokens_per_block // block
        physical = (2, blocks // ratio, config.tokens_per_block, config.kv_head_num, *inner)
        if base.shape not in (physical, (2, blocks, block, config.kv_head_num, *inner)):
            raise RuntimeError(f"the cache is {list(base.shape)}; expected {list(physical)}")
        return base.view(2 * blocks, block, config.kv_head_num, *inner)

    def _offsets(self, inputs: PyAttentionInputs, requests: int, longest: int) -> Tensor | None:
        limit = self.config.max_seq_len
        explicit = inputs.combo_position_ids is not None or inputs.context_parallel_info is not None
        if longest > limit and not explicit:
            # Kernels skip tokens at positions outside the rotary table.
            raise RuntimeError(f"a sequence of {longest} tokens; max_seq_len is {limit}")
        table = inputs.kv_cache_kernel_block_id_device
        if table is None or (table.numel() == 0 and (requests or table.dim() != 2)):
            return None
        if table.shape[1] * self.config.kernel_block < longest:
            raise RuntimeError(
                f"the block table has {table.shape[1]} blocks of {self.config.kernel_block} for "
                f"{longest} tokens"
            )
        return self.offsets_of(table)

    def _positions(
        self, inputs: PyAttentionInputs, tokens: int, longest_prefix: int
    ) -> Tensor | None:
        ids, parallel = inputs.combo_position_ids, inputs.context_parallel_info
        mrope = self.config.rope_config.style == RopeStyle.Mrope
        count = 0 if ids is None else ids.numel()
        if mrope and (count % 3 or (tokens and not count)):
            raise RuntimeError("Mrope needs combo_position_ids, three for each token")
        if ids is None and parallel is not None:
            if longest_prefix > 0:
                raise RuntimeError("context parallelism with a prefix needs combo_position_ids")
            ids = parallel.shuffle_indices
        self._check_positions(ids)
        return ids.reshape(-1, 3) if mrope and ids is not None else ids

    def _check_positions(self, ids: Tensor | None) -> None:
        """Check position ids on the host only; reading the device's would wait for it."""
        if ids is None or ids.numel() == 0 or ids.device.type != "cpu":
            return
        first, last, limit = int(ids.min()), int(ids.max()), self.config.max_seq_len
        if first < 0 or last >= limit:
            wrong = first if first < 0 else last
            raise RuntimeError(f"a token at position {wrong}; max_seq_len is {limit}")

    def _output(self, tokens: int, heads: int, inputs: PyAttentionInputs) -> Tensor:
        """Allocate a step's buffer, zeroed because rows of padded slots are never written."""
        if self.config.fp8_output and inputs.dtype == torch.float16:
            raise RuntimeError("8-bit results of float16 activations; expected bfloat16")
        device = device_lengths(inputs, "input_lengths").device
        dtype = self.config.fp8_dtype if self.config.fp8_output else inputs.dtype
        return torch.zeros(tokens, heads, self.config.size_per_head, device=device, dtype=dtype)


def host_lengths(lengths: Tensor, name: str) -> list[int]:
    """Read lengths from their host mirror; reading the device's would wait for it."""
    if lengths.device.type != "cpu":
        raise RuntimeError(f"{name} lies on {lengths.device}; expected the host's mirror of it")
    numbers = [int(length) for length in lengths.tolist()]
    if min(numbers, default=0) < 0:
        request, length = next(each for each in enumerate(numbers) if each[1] < 0)
        raise RuntimeError(f"{name}[{request}] is {length}; expected at least 0")
    return numbers


def device_lengths(inputs: PyAttentionInputs, name: str) -> Tensor:
    """Return the device tensor called `name`; on the CPU it is the host's."""
    found: Tensor | None = getattr(inputs, f"{name}_device")
    if found is not None:
        return found
    table = inputs.kv_cache_kernel_block_id_device
    if table is not None and table.device.type != "cpu":
        raise RuntimeError(f"{name}_device is None; expected {name} on {table.device}")
    host: Tensor = getattr(inputs, name)
    return host


def prefix_sums(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
