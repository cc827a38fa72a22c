# SPDX-License-Identifier: Apache-2.0
"""A layer's sequence mixer, and what a model says of it before it is made."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from rtp_llm.attention import Backend, BackendConfig, BackendOptions, CacheDtypes, CacheSpec
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions


class Mixer(Layer):
    """A layer that reads other tokens of its sequence than its own: attention, MLA, ..."""

    @abstractmethod
    def cache_spec(self) -> CacheSpec | None:
        """What it keeps of a sequence; None: nothing."""


class MixerShape(Protocol):
    """Sizes of one layer's attention, MLA, linear attention, ...; a frozen dataclass.

    Memory is planned and backends are chosen from it without weights: `rtp-llm explain` does no
    more. `checkpoint_name`: what the layer is called in a checkpoint.
    """

    checkpoint_name: ClassVar[str]

    def on_rank(self, ranks: TensorParallel) -> MixerShape:
        """The part of it that one of several tensor-parallel ranks has.

        DivisionError where there are no equal parts.
        """

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec | None:
        """What the layer keeps of a sequence."""

    def backend_config(self, options: BackendOptions) -> BackendConfig | None:
        """What it asks of a backend; None: it needs none. Equal for layers of one cache group."""

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> Mixer:
        """Layer `index` with the backend of its cache group."""
