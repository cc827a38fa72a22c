# SPDX-License-Identifier: Apache-2.0
"""The MLA of each layer, some of which have an indexer."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.layers import MlaShape
from rtp_llm.models.config import ModelConfig


def mla_mixers(config: ModelConfig) -> tuple[MlaShape, ...]:
    """The layers' shapes, those of draft layers last; indexers' caches are numbered after them."""
    assert config.mla is not None
    count = config.num_layers + config.draft_layers
    indexer = config.mla.indexer
    if indexer is None:
        return (config.mla,) * count
    shares = config.shared_selections + (False,) * config.draft_layers
    first = count + (config.eagle3 is not None)
    return tuple(
        replace(
            config.mla,
            indexer=replace(indexer, cache=first + layer - sum(shares[:layer])),
            shares_selection=shares[layer],
        )
        for layer in range(count)
    )
