# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer of a layer with DeepSeek sparse attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm.attention import CacheDtypes, IndexerConfig, IndexerInputs, IndexerSpec
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.layer_norm import LayerNorm
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.options import LayerOptions

# Whatever rms_norm_eps says.
_EPS = 1e-6


@dataclass(frozen=True)
class IndexerShape:
    """Sizes of one layer's indexer in elements.

    Its queries are projections of MLA's compressed query, `query_rank` wide. `cache` is the index
    of its cache, which comes after those of the model's layers. Tensor-parallel ranks all have the
    whole indexer, and make the same selection.
    """

    hidden_size: int
    query_rank: int
    config: IndexerConfig
    cache: int = 0

    def cache_spec(self, dtypes: CacheDtypes) -> IndexerSpec:
        return IndexerSpec(self.config.head_dim, dtypes.inputs)


class Indexer(Layer):
    """Projections to the queries, the key and the weights of the heads."""

    def __init__(self, shape: IndexerShape, options: LayerOptions) -> None:
        super().__init__()
        self.shape = shape
        heads, dim = shape.config.num_heads, shape.config.head_dim
        hidden = shape.hidden_size
        self.wq_b = make_linear(shape.query_rank, {"wq_b": heads * dim}, False, options)
        self.wk = make_linear(hidden, {"wk": dim}, False, options)
        self.k_norm = LayerNorm(dim, _EPS, options)
        # Checkpoints keep these few rows as floats.
        narrow = options.unquantized()
        self.weights_proj = make_linear(hidden, {"weights_proj": heads}, False, narrow)

    def forward(self, x: Tensor, compressed: Tensor) -> IndexerInputs:
        """Project x [T, hidden] and MLA's compressed queries [T, query_rank]."""
        config = self.shape.config
        q = self.wq_b(compressed).view(len(x), config.num_heads, config.head_dim)
        norm = self.k_norm
        assert norm.bias is not None
        return IndexerInputs(
            q,
            self.wk(x),
            self.weights_proj(x),
            norm.weight,
            norm.bias,
            norm.eps,
            self.shape.cache,
        )
