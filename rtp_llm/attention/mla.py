# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (MLA, arXiv 2405.04434): compressed keys and values.

For each token the cache holds one latent and one rotated key, which all heads share. A head's keys
and values are products of the latent with its part of `kv_b`, and there are two ways to attend:

absorbed: the query is multiplied by the key part instead and attends to the cached latents, and the
    result is multiplied by the value part;
expanded: the latents of the context are expanded to keys and values of every head, for this step.

See rtp_llm/attention/mla_step.py for how the form is chosen for each sequence of a step.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import Backend
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.indexer import (
    IndexerConfig,
    IndexerInputs,
    LightningIndexer,
    TokenSequences,
    token_sequences,
)
from rtp_llm.attention.mla_step import (
    MAX_EXPANDED_KEYS,
    ExpandedPart,
    MlaPart,
    MlaSizes,
    MlaStep,
    plan_step,
)
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Capabilities

# Expanded keys and values of one pass; a pass takes as many heads as fit. One head of the most keys
# that a step expands fits: 2**18 * (128 + 128) numbers of four bytes.
_PASS_BYTES = 256 * 2**20


def context_bytes(keys: int, sizes: MlaSizes, num_heads: int, dtype: torch.dtype) -> int:
    """Bound in bytes on the memory to expand `keys` keys, not counting queries and results."""
    keys = min(keys, MAX_EXPANDED_KEYS)
    gathered = keys * (sizes.latent_size + sizes.rope_size)
    expanded = keys * num_heads * (sizes.nope_size + sizes.value_size)
    return gathered * dtype.itemsize + min(_PASS_BYTES, expanded * dtype.itemsize)


@dataclass(frozen=True)
class MlaConfig:
    """The config of MLA layers.

    Head sizes are in elements: the cache holds R = `latent_size` and P = `rope_size` elements per
    token, a query has Dn = `nope_size` plus P, and a result Dv = `value_size`. `scale` multiplies
    the scores. `indexer`: it selects what the queries see. See BackendOptions for the other fields.
    """

    capabilities: Capabilities
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_heads: int
    latent_size: int
    rope_size: int
    nope_size: int
    value_size: int
    scale: float
    block_size: int
    is_neox: bool = False
    indexer: IndexerConfig | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        selected = "" if self.indexer is None else f", {self.indexer.top_k} of them selected"
        return (
            f"{self.capabilities}, {dtype}, {self.num_heads} heads over latents of "
            f"{self.latent_size} and keys of {self.rope_size}{selected}, "
            f"blocks of {self.block_size}"
        )


class MlaWeights(NamedTuple):
    """A layer's weights for attention: the latent's norm [R], and kv_b [H, Dn + Dv, R].

    `keys` [H, R, Dn] is the transposed key part of kv_b, present if the backend's `wants_keys` is
    set.
    """

    norm_weight: Tensor
    eps: float
    kv_b: Tensor
    keys: Tensor | None = None


class MlaBackend(Backend[MlaConfig]):
    """MLA over the paged cache."""

    config_class = MlaConfig
    wants_keys = False

    def __init__(self, config: MlaConfig) -> None:
        super().__init__(config)
        self._sizes = MlaSizes(
            config.latent_size, config.rope_size, config.nope_size, config.value_size
        )
        self._indexer = None if config.indexer is None else LightningIndexer(config.indexer)

    def prepare(self, batch: ForwardBatch, group: int) -> MlaStep:
        indexer = self.config.indexer
        if indexer is not None and batch.max_seqlen_k > indexer.top_k:
            return MlaStep(None, tokens=token_sequences(batch))
        return plan_step(batch, self._sizes, group)

    def context_bytes(self, keys: int) -> int:
        expanded = context_bytes(keys, self._sizes, self.config.num_heads, self.config.kv_dtype)
        return (
            expanded if self._indexer is None else max(expanded, self._indexer.context_bytes(keys))
        )

    def attend(
        self,
        q: Tensor,
        kv: Tensor,
        layer: int,
        cos_sin: Tensor | None,
        weights: MlaWeights,
        batch: ForwardBatch,
        index: IndexerInputs | None = None,
    ) -> Tensor:
        """Compute attention [T, H * Dv] from the projections; writes latents and keys to the cache.

        `q` [T, H, Dn + P] may be overwritten. `kv` [T, R + P] holds latents before their norm and
        keys before their rotation. `batch` comes from `prepare`. `index`: of a layer that selects
        what it attends to; without it, layers of a model with an indexer take the last selection.
        """
        if not batch.prepared:
            raise ValueError("the batch has not been prepared for MLA")
        step = cast(MlaStep, batch.prepared[batch.layer_group[layer]])
        planes = batch.kv_cache[layer]
        cache = planes.view(planes.shape[1], planes.shape[2], -1)
        if index is not None:
            self._index(index, cos_sin, layer, step, batch)
        seen, only_absorbed = cache, step.absorbed if step.expanded is None else None
        if step.tokens is not None:
            seen, only_absorbed = self._selected(step.tokens, cache)
        wide = None if only_absorbed is None else self._wide(q)
        rotated = q[..., self.config.nope_size :]
        out = rotated if wide is None else wide[..., self.config.latent_size :]
        self._store(rotated, out, kv, layer, cos_sin, weights, batch)
        if wide is not None and only_absorbed is not None:
            return self._absorbed(q, wide, seen, weights, only_absorbed).flatten(1)
        return self._by_parts(q, cache, weights, step).flatten(1)

    def _store(
        self,
        rotated: Tensor,
        out: Tensor,
        kv: Tensor,
        layer: int,
        cos_sin: Tensor | None,
        weights: MlaWeights,
        batch: ForwardBatch,
    ) -> None:
        """Write latents and rotated keys to the cache, and rotated parts of queries to `out`."""
        batch.wait_for_layer(layer)
        planes = batch.kv_cache[layer]
        ops.mla_rotate_and_store(
            rotated,
            out,
            kv,
            weights.norm_weight,
            weights.eps,
            cos_sin,
            batch.positions,
            planes.view(planes.shape[1], planes.shape[2], -1),
            batch.slot_mapping[batch.layer_group[layer]],
            self.config.is_neox,
        )
        batch.layer_written(layer)

    def _index(
        self,
        index: IndexerInputs,
        cos_sin: Tensor | None,
        layer: int,
        step: MlaStep,
        batch: ForwardBatch,
    ) -> None:
        """Cache the layer's index keys, and select if the step is long enough."""
        assert self._indexer is not None and cos_sin is not None, "index keys are rotated"
        self._indexer.store(index, cos_sin, batch)
        if step.tokens is not None:
            self._indexer.select(index, step.tokens, layer, batch)

    def _selected(self, tokens: TokenSequences, cache: Tensor) -> tuple[Tensor, MlaPart]:
        """Every token as a sequence with the selected latents, in blocks of one token."""
        assert self._indexer is not None and self._indexer.selection is not None
        slots, counts = self._indexer.selection
        part = MlaPart(None, tokens.cu_seqlens_q, counts, slots, 1, slots.shape[1])
        return cache.flatten(0, 1)[:, None], part

    def _by_parts(self, q: Tensor, cache: Tensor, weights: MlaWeights, step: MlaStep) -> Tensor:
        """Results [T, H, Dv] of a step with expanded sequences; zeros for tokens of none."""
        out = q.new_zeros(*q.shape[:2], self.config.value_size)
        if step.absorbed is not None:
            part = q if step.absorbed.rows is None else q[step.absorbed.rows]
            wide = self._wide(part)
            wide[..., self.config.latent_size :] = part[..., self.config.nope_size :]
            _put(out, step.absorbed, self._absorbed(part, wide, cache, weights, step.absorbed))
        if step.expanded is not None:
            part = q if step.expanded.rows is None else q[step.expanded.rows]
            _put(out, step.expanded, self._expanded(part, cache, weights.kv_b, step.expanded))
        return out

    def _wide(self, q: Tensor) -> Tensor:
        """A buffer for queries in the latent space of the cache, [T, H, R + P]."""
        return q.new_empty(*q.shape[:2], self.config.latent_size + self.config.rope_size)

    def _absorbed(
        self, q: Tensor, wide: Tensor, cache: Tensor, weights: MlaWeights, part: MlaPart
    ) -> Tensor:
        """Results [T, H, Dv]; the rotated parts of `wide` are already filled in."""
        config = self.config
        latent_queries = wide[..., : config.latent_size]
        self.absorb_queries(q[..., : config.nope_size], weights, latent_queries)
        return self.values_of(self.attend_latents(wide, cache, part), weights)

    def absorb_queries(self, q: Tensor, weights: MlaWeights, out: Tensor) -> None:
        """Project queries [T, H, Dn] to the latent space, into `out` [T, H, R]."""
        keys = weights.kv_b[:, : self.config.nope_size]
        torch.bmm(q.transpose(0, 1), keys, out=out.transpose(0, 1))

    def values_of(self, sums: Tensor, weights: MlaWeights) -> Tensor:
        """Project weighted sums of latents [T, H, R] to sums of values [T, H, Dv]."""
        out = sums.new_empty(*sums.shape[:2], self.config.value_size)
        values = weights.kv_b[:, self.config.nope_size :]
        torch.bmm(sums.transpose(0, 1), values.transpose(1, 2), out=out.transpose(0, 1))
        return out

    def _expanded(self, q: Tensor, cache: Tensor, kv_b: Tensor, part: ExpandedPart) -> Tensor:
        """Results [T, H, Dv], in passes over heads to bound the memory of keys and values."""
        config = self.config
        context = cache.flatten(0, 1).index_select(0, part.places)
        latents, keys = context[:, : config.latent_size], context[:, config.latent_size :]
        row_bytes = kv_b.shape[1] * kv_b.element_size()
        heads = max(1, _PASS_BYTES // max(1, len(context) * row_bytes))
        results = []
        for first in range(0, config.num_heads, heads):
            some = kv_b[first : first + heads]
            expanded = (latents @ some.flatten(0, 1).T).view(len(context), *some.shape[:2])
            results.append(self.attend_heads(q[:, first : first + heads], keys, expanded, part))
        return results[0] if len(results) == 1 else torch.cat(results, dim=1)

    @abstractmethod
    def attend_latents(self, q: Tensor, cache: Tensor, part: MlaPart) -> Tensor:
        """Attention of `q` [T, H, R + P] over cache [N, S, R + P] -> [T, H, R]."""

    @abstractmethod
    def attend_heads(self, q: Tensor, keys: Tensor, expanded: Tensor, part: ExpandedPart) -> Tensor:
        """Attention of `q` [T, h, Dn + P] over K expanded rows -> [T, h, Dv].

        `keys` [K, P] are the rotated keys that all heads share; `expanded` [K, h, Dn + Dv] holds
        the per-head parts of the keys, and the values.
        """


def _put(out: Tensor, part: MlaPart, result: Tensor) -> None:
    """Write `result` to the rows of `out` that belong to the part's tokens."""
    if part.rows is None:
        out.copy_(result)
    else:
        out[part.rows] = result
