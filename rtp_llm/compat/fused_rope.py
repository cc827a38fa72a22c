# SPDX-License-Identifier: Apache-2.0
"""RoPE and the cache write as one operator per layer: prepare() once per step, forward() per layer.

The three classes differ in what they return: the packed projection, the queries of a prefill, or
the queries of a decode. forward() never waits and never allocates: it writes to buffers of the
step, which the next layer reuses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtp_llm.compat.attention_inputs import LayerKVCache, PyAttentionInputs
from rtp_llm.compat.fused_rope_base import FusedRopeBase, device_lengths, host_lengths, prefix_sums
from rtp_llm.compat.fused_rope_params import FusedRopeAttnParams, padding_offsets


class _Prefill(FusedRopeBase):
    """The common base of the prefill operators."""

    def step(self, inputs: PyAttentionInputs, output: Tensor | None) -> FusedRopeAttnParams:
        if not inputs.is_prefill:
            raise RuntimeError("these are the inputs of a decode; expected a prefill")
        new = host_lengths(inputs.input_lengths, "input_lengths")
        past = [0] * len(new)
        if inputs.prefix_lengths is not None:
            past = host_lengths(inputs.prefix_lengths, "prefix_lengths")
        whole = [a + b for a, b in zip(new, past, strict=True)]
        longest, longest_past = max(new, default=0), max(past, default=0)
        self._check(inputs, longest_past)
        offsets = self._offsets(inputs, len(new), max(whole, default=0))
        padded = longest if inputs.is_s_padded else 0
        if output is None:
            heads = self._returned_heads(offsets is not None)
            output = self._output(len(new) * padded or sum(new), heads, inputs)
        return FusedRopeAttnParams(
            kv_cache_offset=offsets,
            sequence_lengths=None,
            position_ids=self._positions(inputs, sum(new), longest_past),
            tokens=sum(new),
            max_seq_len=longest,
            max_prefix_length=longest_past,
            context_total_kv_length=sum(whole),
            decode_plan=False,
            dtype=inputs.dtype,
            output=output,
            prepared_by=self,
            padded_queries=padded,
            **self._lengths(inputs, sum(new), padded),
        )

    def _returned_heads(self, has_table: bool) -> int:
        """Number of heads in a step's buffer; with a block table, keys and values are cached."""
        return self._heads

    def _check(self, inputs: PyAttentionInputs, longest_past: int) -> None:
        """Raise RuntimeError if this operator does not support the step."""
        if inputs.is_s_padded:
            raise RuntimeError("padded rows hold queries alone; use the operator that returns them")

    def _lengths(
        self, inputs: PyAttentionInputs, tokens: int, padded: int
    ) -> dict[str, Tensor | None]:
        """Return lengths and their prefix sums on the device."""
        lengths = device_lengths(inputs, "input_lengths")
        prefix = torch.zeros_like(lengths)
        if inputs.prefix_lengths is not None:
            prefix = device_lengths(inputs, "prefix_lengths")
        sums, kv_sums = inputs.cu_seqlens_device, inputs.cu_kv_seqlens_device
        sums = prefix_sums(lengths) if sums is None else sums
        padding = inputs.padding_offset
        if padding is None and padded:
            padding = padding_offsets(sums, tokens, padded)
        return {
            "input_lengths": lengths,
            "prefix_lengths": prefix,
            "cu_seqlens": sums,
            "cu_kv_seqlens": prefix_sums(lengths + prefix) if kv_sums is None else kv_sums,
            "padding_offset": padding,
        }

    def _arguments(
        self, qkv: Tensor, kv_cache: LayerKVCache | None, params: FusedRopeAttnParams
    ) -> dict[str, Any]:
        if kv_cache is not None and params.kv_cache_offset is None and len(qkv):
            raise RuntimeError("a cache was given, but the step has no block table")
        return self._common(qkv, kv_cache) | {
            "positions": params.position_ids,
            "cu_seqlens": params.cu_seqlens,
            "past_lengths": params.prefix_lengths,
            "offsets": None if kv_cache is None else params.kv_cache_offset,
        }


class FusedRopeKVCachePrefillOpQKVOut(_Prefill):
    """Prefill without a cached prefix: returns the rotated packed projection [T, (H + 2 Hk) D]."""

    def _check(self, inputs: PyAttentionInputs, longest_past: int) -> None:
        super()._check(inputs, longest_past)
        if longest_past > 0:
            raise RuntimeError(
                f"a request has a cached prefix of {longest_past} tokens; its keys are only in the "
                "cache, so use FusedRopeKVCachePrefillOpQOut"
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
        q_out, k_out, v_out = self._parts(params.output)
        self._run(
            self._arguments(qkv, kv_cache, params),
            q_out=q_out,
            k_out=k_out,
            v_out=v_out,
            q_weight=q_weight,
            k_weight=k_weight,
        )
        return params.output.flatten(1)


class FusedRopeKVCachePrefillOpSplitOut(_Prefill):
    """Prefill for ROCm's attention: returns queries, keys and values as separate tensors.

    With a cache, keys and values are written to the cache only, and their returned tensors are
    undefined and take no memory.
    """

    def _returned_heads(self, has_table: bool) -> int:
        return self.config.head_num if has_table else self._heads

    def forward(
        self,
        qkv: Tensor,
        kv_cache: LayerKVCache | None,
        params: FusedRopeAttnParams,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer; the results are overwritten by the next one. [T, H, D] and [T, Hk, D]."""
        arguments = self._arguments(qkv, kv_cache, params)
        q, rest = self._first_heads(params.output, self.config.head_num)
        k, v = arguments["k"], arguments["v"]
        if kv_cache is None:
            if not rest.numel():  # the step was prepared for a cache
                rest = params.keys_and_values(2 * self.config.kv_head_num)
            k, rest = self._first_heads(rest, self.config.kv_head_num)
            v, _ = self._first_heads(rest, self.config.kv_head_num)
        self._run(
            arguments,
            q_out=q,
            k_out=k if kv_cache is None else None,
            v_out=v if kv_cache is None else None,
            q_weight=q_weight,
            k_weight=k_weight,
        )
        return q, k, v

    @staticmethod
    def _first_heads(buffer: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """The buffer's first part as [T, heads, D] without gaps, and the rest as [T, *, D]."""
        tokens, count, size = buffer.shape
        flat, end = buffer.view(-1), tokens * heads * size
        first, rest = flat[:end], flat[end:]
        return first.view(tokens, heads, size), rest.view(tokens, count - heads, size)


class FusedRopeKVCachePrefillOpQOut(_Prefill):
    """Prefill whose attention reads keys and values from the cache: returns queries [T, H, D]."""

    def _returned_heads(self, has_table: bool) -> int:
        return self.config.head_num

    def _check(self, inputs: PyAttentionInputs, longest_past: int) -> None:
        """Accept every step, padded or not, with or without a prefix: only queries are returned."""

    def forward(
        self,
        qkv: Tensor,
        kv_cache: LayerKVCache | None,
        params: FusedRopeAttnParams,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
    ) -> Tensor:
        """One layer; the result is overwritten by the next one. [B * longest, H, D] if padded."""
        if kv_cache is None:
            raise RuntimeError(
                "without a cache keys and values would be lost; use FusedRopeKVCachePrefillOpQKVOut"
            )
        self._run(
            self._arguments(qkv, kv_cache, params),
            q_out=params.output,
            q_weight=q_weight,
            k_weight=k_weight,
            padded_queries=params.padded_queries,
        )
        return params.output


class FusedRopeKVCacheDecodeOp(FusedRopeBase):
    """One new token of each request: returns queries [B, H, D]; the cache is mandatory."""

    def step(self, inputs: PyAttentionInputs, output: Tensor | None) -> FusedRopeAttnParams:
        if inputs.is_prefill or inputs.sequence_lengths is None:
            raise RuntimeError("a decode needs sequence_lengths and is no prefill")
        past = host_lengths(inputs.sequence_lengths, "sequence_lengths")
        if output is None:
            output = self._output(len(past), self.config.head_num, inputs)
        return FusedRopeAttnParams(
            kv_cache_offset=self._offsets(inputs, len(past), max(past, default=-1) + 1),
            input_lengths=device_lengths(inputs, "input_lengths"),
            prefix_lengths=None,
            sequence_lengths=device_lengths(inputs, "sequence_lengths"),
            cu_seqlens=None,
            cu_kv_seqlens=None,
            padding_offset=None,
            position_ids=self._positions(inputs, len(past), 0),
            tokens=len(past),
            max_seq_len=0,
            max_prefix_length=0,
            context_total_kv_length=0,
            decode_plan=True,
            dtype=inputs.dtype,
            output=output,
            prepared_by=self,
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
        if kv_cache is None or (params.kv_cache_offset is None and len(qkv)):
            raise RuntimeError("a decode needs a cache and a block table")
        places = {
            "positions": params.position_ids,
            "past_lengths": params.sequence_lengths,
            "offsets": params.kv_cache_offset,
        }
        self._run(
            self._common(qkv, kv_cache) | places,
            q_out=params.output,
            q_weight=q_weight,
            k_weight=k_weight,
        )
        return params.output
