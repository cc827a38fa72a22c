# SPDX-License-Identifier: Apache-2.0
"""DeepSeek sparse attention: a lightning indexer selects the tokens that MLA attends to.

A layer with an indexer caches one small key per token, and every query takes the `top_k` tokens
whose keys have the largest logits. Attention then sees the latents of these alone. Layers without
an indexer take the last selection of the step. While no sequence has more than `top_k` tokens,
every one is taken: keys are cached, nothing is selected, and MLA is as without an indexer.

See the report on DeepSeek-V3.2-Exp, and https://arxiv.org/abs/2603.12201 for shared selections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.batch import ForwardBatch

INDEXER_OPERATORS = ("indexer_rotate_and_store", "paged_mqa_logits", "top_k_slots")
# Logits that exist at a time; a long step selects for some of its tokens after the other.
_LOGIT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class IndexerConfig:
    """`num_heads` queries and one key of `head_dim` elements per token select `top_k` tokens.

    `is_neox`: halves of what is rotated rotate together, else neighbours.
    """

    num_heads: int
    head_dim: int
    top_k: int
    is_neox: bool


class IndexerInputs(NamedTuple):
    """A layer's queries [T, n, D], which are overwritten, keys [T, D] and weights [T, n].

    The keys get a layer norm with `norm_weight` and `norm_bias` [D]; `cache` is the index of the
    layer's cache of keys.
    """

    q: Tensor
    k: Tensor
    weights: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    eps: float
    cache: int


@dataclass(frozen=True)
class TokenSequences:
    """What each of a step's tokens may select from; `cu_seqlens_q` int32 [T + 1] counts tokens.

    `sequences` int32 [T] is its sequence (the number of sequences: none), `visible` int32 [T] how
    many of its keys the token sees.
    """

    sequences: Tensor
    visible: Tensor
    cu_seqlens_q: Tensor


class Selection(NamedTuple):
    """The slots int32 [T, top_k] of each token's selection in the cache of latents, and their
    number, int32 [T]."""

    slots: Tensor
    counts: Tensor


def token_sequences(batch: ForwardBatch) -> TokenSequences:
    """Find each token's sequence without waiting for the device."""
    tokens = torch.arange(
        len(batch.positions) + 1, dtype=torch.int32, device=batch.positions.device
    )
    ends = batch.cu_seqlens_q[1:]
    sequences = torch.bucketize(tokens[:-1], ends, right=True, out_int32=True)
    visible = torch.where(sequences < len(ends), batch.positions + 1, 0)
    return TokenSequences(sequences, visible, tokens)


class LightningIndexer:
    """Caches index keys and selects tokens; `selection` is that of the last layer that did."""

    def __init__(self, config: IndexerConfig) -> None:
        self.config = config
        self.selection: Selection | None = None

    def store(self, inputs: IndexerInputs, cos_sin: Tensor, batch: ForwardBatch) -> None:
        """Rotate the queries of `inputs` in place and write its keys to the cache."""
        batch.wait_for_layer(inputs.cache)
        ops.indexer_rotate_and_store(
            inputs.q,
            inputs.k,
            inputs.norm_weight,
            inputs.norm_bias,
            inputs.eps,
            cos_sin,
            batch.positions,
            _rows(batch.kv_cache[inputs.cache]),
            batch.slot_mapping[batch.layer_group[inputs.cache]],
            self.config.is_neox,
        )
        batch.layer_written(inputs.cache)

    def select(
        self,
        inputs: IndexerInputs,
        tokens: TokenSequences,
        layer: int,
        batch: ForwardBatch,
    ) -> None:
        """Select for each token slots of the cache of latents of `layer`."""
        keys, latents = _rows(batch.kv_cache[inputs.cache]), _rows(batch.kv_cache[layer])
        own, table = (batch.block_table[batch.layer_group[each]] for each in (inputs.cache, layer))
        blocks, block_size = latents.shape[:2]

        def select(some: slice) -> Selection:
            of_tokens = tokens.sequences[some], tokens.visible[some]
            q, weights = inputs.q[some], inputs.weights[some]
            logits = ops.paged_mqa_logits(q, weights, keys, *of_tokens, own, batch.max_seqlen_k)
            top_k = self.config.top_k
            return Selection(*ops.top_k_slots(logits, *of_tokens, table, blocks, block_size, top_k))

        rows = max(1, _LOGIT_BYTES // (4 * batch.max_seqlen_k))
        parts = [select(slice(at, at + rows)) for at in range(0, len(inputs.q), rows)]
        joined = (torch.cat(part) for part in zip(*parts, strict=True))
        self.selection = parts[0] if len(parts) == 1 else Selection(*joined)

    def context_bytes(self, keys: int) -> int:
        """Bound in bytes on the memory of a selection from `keys` keys, not counting results."""
        return max(_LOGIT_BYTES, 4 * keys)


def _rows(planes: Tensor) -> Tensor:
    """A layer's cache [1, N, S, 1, D] as [N, S, D]."""
    return planes.view(planes.shape[1], planes.shape[2], -1)
