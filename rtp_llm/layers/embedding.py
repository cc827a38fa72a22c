"""The two ends of a model: token ids to vectors, vectors to logits."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear_factory import make_float_product, make_linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights import RowsTarget, WeightTarget


class Embedding(Layer):
    """A row of the table for each token id."""

    def __init__(self, vocabulary: int, hidden: int, options: LayerOptions) -> None:
        super().__init__()
        self.weight = options.parameter(vocabulary, hidden)

    def forward(self, ids: Tensor) -> Tensor:
        return ops.embedding(ids, self.weight)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", RowsTarget(self.weight)


class LogitsHead(Layer):
    """Logits over the vocabulary, float32; `weight_name` is its weight's name in the checkpoint."""

    def __init__(
        self, vocabulary: int, hidden: int, options: LayerOptions, weight_name: str
    ) -> None:
        super().__init__()
        self.product = make_linear(hidden, {"lm_head": vocabulary}, False, options)
        self._weight_name = weight_name

    def forward(self, hidden: Tensor) -> Tensor:
        return self.product.float_product(hidden)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        stem = self._weight_name.removesuffix("weight")
        for end, target in self.product.part_targets("lm_head", 0):
            yield f"{stem}{end}", target


class TiedLogitsHead(Layer):
    """Logits over the vocabulary, float32, from the embedding's own memory."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight
        self._product = make_float_product(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return self._product(hidden, self.weight)
