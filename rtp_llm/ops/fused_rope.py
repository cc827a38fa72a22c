"""RoPE and the cache write as one operator per layer: prepare() once per step, forward() per layer.

The three classes differ in what they return: the packed projection, the queries of a prefill, or
the queries of a decode. forward() waits for nothing and allocates nothing: it writes into buffers
of the step, which the next layer uses again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.attention_inputs import (
    AttentionConfigs,
    KvCacheDataType,
    LayerKVCache,
    PyAttentionInputs,
)
from rtp_llm.ops.fused_rope_params import (
    FusedRopeAttnParams,
    convert_offset_to_block_array,
    copy_into,
)
from rtp_llm.ops.rope_style import RopeStyle
from rtp_llm.ops.rotary_table import RopeConfig, rope_table
from rtp_llm.ops.rotation import rotate_and_store


class _FusedRope:
    """What the three operators share."""

    def __init__(self, attn_configs: AttentionConfigs) -> None:
        self.config = attn_configs
        self._table = attn_configs.rope_config.table()
        self._heads = attn_configs.head_num + 2 * attn_configs.kv_head_num
        self._tables: dict[torch.device, Tensor] = {}

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

    def _parts(self, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value heads of [T, H + 2 Hk, D]."""
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
        """The cache as rows [rows, S, Hk, D], which offsets name."""
        rows = self._rows(kv_cache.kv_cache_base, (self.config.size_per_head,))
        scales = kv_cache.kv_scale_base
        if self.config.kv_cache_dtype == KvCacheDataType.FP8 and scales is None:
            raise RuntimeError("an FP8 cache has no scales; expected kv_scale_base")
        if scales is not None:
            scales = self._rows(scales, ())
        return {"k_cache": rows, "v_cache": rows, "scales": scales}

    def _rows(self, base: Tensor, inner: tuple[int, ...]) -> Tensor:
        config, block = self.config, self.config.kernel_block
        blocks = config.num_kernel_blocks
        if base.numel() == 0:
            raise RuntimeError(f"the cache is {list(base.shape)}; expected storage")
        if blocks is None:
            shape = (base.shape[0], 2, config.kv_head_num, block, *inner)
            if base.shape != shape:
                raise RuntimeError(f"the cache is {list(base.shape)}; expected {list(shape)}")
            return base.flatten(0, 1).transpose(1, 2)
        ratio = config.tokens_per_block // block
        physical = (2, blocks // ratio, config.tokens_per_block, config.kv_head_num, *inner)
        if base.shape not in (physical, (2, blocks, block, config.kv_head_num, *inner)):
            raise RuntimeError(f"the cache is {list(base.shape)}; expected {list(physical)}")
        return base.view(2 * blocks, block, config.kv_head_num, *inner)

    def update_kv_cache_offset(self, params: FusedRopeAttnParams, table: Tensor) -> None:
        """Take over another block table [B, M] in place; RuntimeError when it does not fit."""
        if params.kv_cache_offset is None:
            raise RuntimeError("the step was prepared without a block table")
        fresh = convert_offset_to_block_array(table, self.config.num_kernel_blocks)
        copy_into("kv_cache_offset", params.kv_cache_offset, fresh)

    def _offsets(self, inputs: PyAttentionInputs, longest: int) -> Tensor | None:
        table = inputs.kv_cache_kernel_block_id_device
        if table is None or table.numel() == 0:
            return None
        if table.shape[1] * self.config.kernel_block < longest:
            raise RuntimeError(
                f"the block table has {table.shape[1]} blocks of {self.config.kernel_block} for "
                f"{longest} tokens"
            )
        return convert_offset_to_block_array(table, self.config.num_kernel_blocks)

    def _positions(self, inputs: PyAttentionInputs, longest_prefix: int) -> Tensor | None:
        ids, mrope = inputs.combo_position_ids, self.config.rope_config.style == RopeStyle.Mrope
        if mrope:
            if ids is None or ids.numel() == 0 or ids.numel() % 3:
                raise RuntimeError("Mrope needs combo_position_ids, three for each token")
            return ids.reshape(-1, 3)
        if ids is None and inputs.context_parallel_info is not None:
            if longest_prefix > 0:
                raise RuntimeError("context parallelism with a prefix needs combo_position_ids")
            return inputs.context_parallel_info.shuffle_indices
        return ids

    def _output(self, tokens: int, heads: int, inputs: PyAttentionInputs) -> Tensor:
        """The step's buffer. Zeros: rows of padded slots are never written."""
        device = _lengths(inputs, "input_lengths").device
        dtype = self.config.fp8_dtype if self.config.fp8_output else inputs.dtype
        return torch.zeros(tokens, heads, self.config.size_per_head, device=device, dtype=dtype)


class _Prefill(_FusedRope):
    """What the two prefill operators share."""

    def _prepare(self, inputs: PyAttentionInputs, heads: int) -> FusedRopeAttnParams:
        if not inputs.is_prefill:
            raise RuntimeError("these are the inputs of a decode; expected a prefill")
        new = _host(inputs.input_lengths, "input_lengths")
        past = [0] * len(new)
        if inputs.prefix_lengths is not None:
            past = _host(inputs.prefix_lengths, "prefix_lengths")
        whole = [a + b for a, b in zip(new, past, strict=True)]
        longest, longest_past = max(new, default=0), max(past, default=0)
        lengths = _lengths(inputs, "input_lengths")
        prefix = torch.zeros_like(lengths)
        if inputs.prefix_lengths is not None:
            prefix = _lengths(inputs, "prefix_lengths")
        cu_seqlens = inputs.cu_seqlens_device
        padded = longest if inputs.is_s_padded else 0
        rows = len(new) * padded if padded else sum(new)
        return FusedRopeAttnParams(
            kv_cache_offset=self._offsets(inputs, max(whole, default=0)),
            input_lengths=lengths,
            prefix_lengths=prefix,
            sequence_lengths=None,
            cu_seqlens=_prefix_sums(lengths) if cu_seqlens is None else cu_seqlens,
            cu_kv_seqlens=inputs.cu_kv_seqlens_device,
            padding_offset=inputs.padding_offset,
            position_ids=self._positions(inputs, longest_past),
            max_seq_len=longest,
            max_prefix_length=longest_past,
            context_total_kv_length=sum(whole),
            decode_plan=False,
            dtype=inputs.dtype,
            padded_queries=padded,
            output=self._output(rows, heads, inputs),
        )

    def _arguments(
        self, qkv: Tensor, kv_cache: LayerKVCache | None, params: FusedRopeAttnParams
    ) -> dict[str, Any]:
        if kv_cache is not None and params.kv_cache_offset is None:
            raise RuntimeError("a cache was given, but the step has no block table")
        return self._common(qkv, kv_cache) | {
            "positions": params.position_ids,
            "cu_seqlens": params.cu_seqlens,
            "past_lengths": params.prefix_lengths,
            "offsets": None if kv_cache is None else params.kv_cache_offset,
        }


class FusedRopeKVCachePrefillOpQKVOut(_Prefill):
    """Prefill without a cached prefix: returns the rotated packed projection [T, (H + 2 Hk) D]."""

    def prepare(self, attn_inputs: PyAttentionInputs) -> FusedRopeAttnParams:
        """Once per step; RuntimeError when a request has a prefix, which would be missing."""
        if attn_inputs.is_s_padded:
            raise RuntimeError("padded rows hold queries alone; use the operator that returns them")
        params = self._prepare(attn_inputs, self._heads)
        if params.max_prefix_length > 0:
            raise RuntimeError(
                f"a request has a cached prefix of {params.max_prefix_length} tokens; its keys are "
                "only in the cache, so use FusedRopeKVCachePrefillOpQOut"
            )
        return params

    def forward(
        self,
        qkv: Tensor,
        kv_cache: LayerKVCache | None,
        params: FusedRopeAttnParams,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
    ) -> Tensor:
        """One layer; the result is overwritten by the next one. Weights: norm heads before."""
        q_out, k_out, v_out = self._parts(params.output)
        rotate_and_store(
            **self._arguments(qkv, kv_cache, params),
            q_out=q_out,
            k_out=k_out,
            v_out=v_out,
            q_weight=q_weight,
            k_weight=k_weight,
        )
        return params.output.flatten(1)


class FusedRopeKVCachePrefillOpSplitOut(_Prefill):
    """Prefill as ROCm's attention takes it: returns queries, keys and values apart.

    With a cache keys and values are there alone, and what is returned for them is undefined.
    """

    def prepare(self, attn_inputs: PyAttentionInputs) -> FusedRopeAttnParams:
        """Once per step."""
        if attn_inputs.is_s_padded:
            raise RuntimeError("padded rows hold queries alone; use the operator that returns them")
        return self._prepare(attn_inputs, self._heads)

    def forward(
        self,
        qkv: Tensor,
        kv_cache: LayerKVCache | None,
        params: FusedRopeAttnParams,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer; the results are overwritten by the next one. [T, H, D] and [T, Hk, D]."""
        config = self.config
        counts = (config.head_num, config.kv_head_num, config.kv_head_num)
        tokens, flat, results, first = len(params.output), params.output.view(-1), [], 0
        for heads in counts:
            size = tokens * heads * config.size_per_head
            part = flat[first : first + size]
            results.append(part.view(tokens, heads, config.size_per_head))
            first += size
        q, k, v = results
        rotate_and_store(
            **self._arguments(qkv, kv_cache, params),
            q_out=q,
            k_out=k if kv_cache is None else None,
            v_out=v if kv_cache is None else None,
            q_weight=q_weight,
            k_weight=k_weight,
        )
        return q, k, v


class FusedRopeKVCachePrefillOpQOut(_Prefill):
    """Prefill whose attention reads keys and values from the cache: returns queries [T, H, D]."""

    def prepare(self, attn_inputs: PyAttentionInputs) -> FusedRopeAttnParams:
        """Once per step."""
        return self._prepare(attn_inputs, self.config.head_num)

    def forward(
        self,
        qkv: Tensor,
        kv_cache: LayerKVCache | None,
        params: FusedRopeAttnParams,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
    ) -> Tensor:
        """One layer; the result is overwritten by the next one. [B * longest, H, D] if padded."""
        rotate_and_store(
            **self._arguments(qkv, kv_cache, params),
            q_out=params.output,
            q_weight=q_weight,
            k_weight=k_weight,
            padded_queries=params.padded_queries,
        )
        return params.output


class FusedRopeKVCacheDecodeOp(_FusedRope):
    """One new token of each request: returns queries [B, H, D]; the cache is mandatory."""

    def prepare(self, attn_inputs: PyAttentionInputs) -> FusedRopeAttnParams:
        """Once per step; reads nothing from the device."""
        inputs = attn_inputs
        if inputs.is_prefill or inputs.sequence_lengths is None:
            raise RuntimeError("a decode needs sequence_lengths and is no prefill")
        past = _host(inputs.sequence_lengths, "sequence_lengths")
        return FusedRopeAttnParams(
            kv_cache_offset=self._offsets(inputs, max(past, default=-1) + 1),
            input_lengths=_lengths(inputs, "input_lengths"),
            prefix_lengths=None,
            sequence_lengths=_lengths(inputs, "sequence_lengths"),
            cu_seqlens=None,
            cu_kv_seqlens=None,
            padding_offset=None,
            position_ids=self._positions(inputs, 0),
            max_seq_len=0,
            max_prefix_length=0,
            context_total_kv_length=0,
            decode_plan=True,
            dtype=inputs.dtype,
            output=self._output(len(past), self.config.head_num, inputs),
        )

    def forward(
        self,
        qkv: Tensor,
        kv_cache: LayerKVCache | None,
        params: FusedRopeAttnParams,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
    ) -> Tensor:
        """One layer; the result is overwritten by the next one. Weights: norm heads before."""
        if kv_cache is None or params.kv_cache_offset is None:
            raise RuntimeError("a decode needs a cache and a block table")
        rotate_and_store(
            **self._common(qkv, kv_cache),
            q_out=params.output,
            positions=params.position_ids,
            past_lengths=params.sequence_lengths,
            offsets=params.kv_cache_offset,
            q_weight=q_weight,
            k_weight=k_weight,
        )
        return params.output


def _host(lengths: Tensor, name: str) -> list[int]:
    """Numbers of a host mirror: reading the device's would wait for it."""
    if lengths.device.type != "cpu":
        raise RuntimeError(f"{name} lies on {lengths.device}; expected the host's mirror of it")
    return [int(length) for length in lengths.tolist()]


def _lengths(inputs: PyAttentionInputs, name: str) -> Tensor:
    """The device's tensor of that name; on the CPU the host's is the same."""
    found: Tensor | None = getattr(inputs, f"{name}_device")
    if found is not None:
        return found
    table = inputs.kv_cache_kernel_block_id_device
    if table is not None and table.device.type != "cpu":
        raise RuntimeError(f"{name}_device is None; expected {name} on {table.device}")
    host: Tensor = getattr(inputs, name)
    return host


def _prefix_sums(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
