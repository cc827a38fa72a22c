# SPDX-License-Identifier: Apache-2.0
"""The two ends of a model: token ids to vectors, vectors to logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.gguf_matrix import GgufMatrix
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear.factory import make_float_product, make_linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.tiled_matrix import TiledMatrix, tiled_matrix
from rtp_llm.layers.weights.gguf_blocks import GgufBlocks
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import LinearShards, shard_target
from rtp_llm.layers.weights.targets import WeightTarget

_EMBEDDING, _HEAD = "embed_tokens", "lm_head"


class Embedding(Layer):
    """Looks up the embedding row of each token id: int32 [T] -> [T, hidden].

    A weight in GGUF blocks stays as it is where the device has kernels for that (`matrix`); one in
    another stored format becomes floats while loading.
    """

    def __init__(
        self, vocabulary: int, hidden: int, options: LayerOptions, name: str = _EMBEDDING
    ) -> None:
        """`name` is the module's in the checkpoint."""
        super().__init__()
        self.shard = Shard.of_vocabulary(vocabulary, options.tensor_parallel)
        self._stored = options.format_of(name)
        self.matrix = self._matrix(self.shard.size, hidden, options)
        if self.matrix is None:
            self.weight = options.parameter(self.shard.size, hidden)

    def _matrix(
        self, rows: int, hidden: int, options: LayerOptions
    ) -> GgufMatrix | TiledMatrix | None:
        stored = self._stored
        if not isinstance(stored, GgufBlocks):
            return None
        if options.keeps("gguf_linear"):
            return GgufMatrix(rows, hidden, stored, options, (_HEAD,))
        return tiled_matrix(rows, hidden, stored, options)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lookup(ids)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows of ids that are on this rank."""
        if self.matrix is not None:
            return self.matrix.lookup(ids)
        return ops.embedding(ids, self.weight)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        if self.matrix is not None:
            targets = self.matrix.targets(0, self.shard.size)
        else:
            targets = self._stored.float_targets(self.weight.detach())
        for suffix, target in targets:
            yield (
                f"{path}{suffix}",
                shard_target(target, *self._stored.shard(suffix, self.shard, None)),
            )


class DividedEmbedding(Embedding):
    """An embedding sharded by rows: rows of other ranks are zero, and results are summed."""

    def __init__(
        self, vocabulary: int, hidden: int, options: LayerOptions, name: str = _EMBEDDING
    ) -> None:
        super().__init__(vocabulary, hidden, options, name)
        self._ranks = options.tensor_parallel
        self._first, self._count = self.shard.ranges[0][0], self.shard.size

    def forward(self, ids: Tensor) -> Tensor:
        places = ids - self._first
        not_local = (places < 0) | (places >= self._count)
        rows = self.lookup(places.clamp_(0, self._count - 1))
        return self._ranks.all_reduce(rows.masked_fill_(not_local[:, None], 0))


def make_embedding(
    vocabulary: int, hidden: int, options: LayerOptions, name: str = _EMBEDDING
) -> Embedding:
    """Create an embedding table, sharded if there are several ranks; `name`: see Embedding."""
    kind = Embedding if options.tensor_parallel.size == 1 else DividedEmbedding
    return kind(vocabulary, hidden, options, name)


class LogitsHead(Layer):
    """Float32 logits over the vocabulary; `weight_name` is the weight's name in the checkpoint.

    With several ranks, each computes the columns in `shard`.
    """

    def __init__(
        self, vocabulary: int, hidden: int, options: LayerOptions, weight_name: str
    ) -> None:
        super().__init__()
        self.shard = Shard.of_vocabulary(vocabulary, options.tensor_parallel)
        parts, self._shards = {_HEAD: self.shard.size}, LinearShards({_HEAD: self.shard})
        self.product = make_linear(hidden, parts, False, options, shards=self._shards)
        self._weight_name = weight_name

    def forward(self, hidden: Tensor) -> Tensor:
        return self.product.float_product(hidden)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        stem = self._weight_name.removesuffix("weight")
        for end, target in self.product.part_targets(_HEAD, 0):
            stored = self.product.formats[_HEAD]
            yield f"{stem}{end}", self._shards.apply(end, (_HEAD,), target, stored)


def gather_columns(logits: Tensor, shard: Shard, ranks: TensorParallel) -> Tensor:
    """[R, shard.size] on each rank -> [R, shard.whole] on all; the last rank may have fewer."""
    if ranks.size == 1:
        return logits
    share = Shard.of_vocabulary(shard.whole, replace(ranks, rank=0)).size
    wide = torch.nn.functional.pad(logits, (0, share - shard.size))
    return ranks.all_gather(wide)[:, : shard.whole].contiguous()


class TiedLogitsHead(Layer):
    """Float32 logits over the vocabulary, computed with the embedding's own weight."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.matrix, self.shard = embedding.matrix, embedding.shard
        if self.matrix is None:
            self.weight = embedding.weight
            self._product = make_float_product(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.matrix is not None:
            return self.matrix.product(hidden, float_results=True)
        return self._product(hidden, self.weight)
