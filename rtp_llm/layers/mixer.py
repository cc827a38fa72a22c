# SPDX-License-Identifier: Apache-2.0
"""A layer's sequence mixer, and its shape, which is known before any layer is created."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from rtp_llm.attention import Backend, BackendConfig, BackendOptions, CacheDtypes, CacheSpec
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions


class Mixer(Layer):
    """A layer that mixes information across the tokens of a sequence: attention, MLA, ..."""

    @abstractmethod
    def cache_spec(self) -> CacheSpec | None:
        """The spec of the layer's per-sequence cache, or None if it has none."""


class MixerShape(Protocol):
    """Sizes of one layer's attention, MLA, linear attention, ...; a frozen dataclass.

    Memory planning and the choice of backends need only this, not the weights, and so does
    `rtp-llm explain`. `checkpoint_name`: the layer's name in a checkpoint.
    """

    checkpoint_name: ClassVar[str]

    def on_rank(self, ranks: TensorParallel) -> MixerShape:
        """Return the shape of one tensor-parallel rank's part.

        Raises DivisionError if it cannot be divided evenly.
        """

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec | None:
        """The spec of the layer's per-sequence cache, or None if it has none."""

    def backend_config(self, options: BackendOptions) -> BackendConfig | None:
        """The config for its backend, equal within a cache group; None: it needs no backend."""

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> Mixer:
        """Create layer `index` with the backend of its cache group."""
