# SPDX-License-Identifier: Apache-2.0
"""The interface of what computes a layer's sequence mixer over a paged cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.cache_spec import CacheDtypes
from rtp_llm.attention.rotation import Rotation, rotation_for
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Capabilities, Support


@dataclass(frozen=True)
class BackendOptions:
    """What device and settings say to every backend.

    `capabilities` are the device's; `kv_dtype` is the number type of keys and values in the cache;
    `block_size` is in tokens; `settings` are the model's.
    """

    capabilities: Capabilities
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    settings: ModelSettings = field(default_factory=ModelSettings)


class BackendConfig(Protocol):
    """What the layers of a cache group ask of their backend: the options, and sizes of their own.

    Which class it is of says which family of backends is asked.
    """

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def kv_dtype(self) -> torch.dtype: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def settings(self) -> ModelSettings: ...


def cache_dtypes(asked: BackendConfig | BackendOptions) -> CacheDtypes:
    """What caches hold where a backend is `asked` for."""
    return CacheDtypes.of(asked.kv_dtype, asked.dtype, asked.settings)


@dataclass(frozen=True)
class AttentionConfig:
    """What layers with keys and values ask; `windows` are those of the cache groups (0 = full).

    See BackendOptions for what is not about heads.
    """

    capabilities: Capabilities
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    windows: tuple[int, ...] = (0,)
    causal: bool = True
    soft_cap: float = 0.0
    sinks: bool = False
    settings: ModelSettings = field(default_factory=ModelSettings)

    def __str__(self) -> str:
        windows = ", ".join(str(window) for window in self.windows if window)
        kind = f"window {windows}" if windows else "full"
        kind += ", and full" if windows and 0 in self.windows else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.capabilities}, {dtype}, {self.num_heads} heads over {self.num_kv_heads} "
            f"KV heads of {self.head_dim}, blocks of {self.block_size}, {kind}"
        )


ConfigT = TypeVar("ConfigT", bound=BackendConfig)


class Backend(ABC, Generic[ConfigT]):
    """Runs the sequence mixer of one or more cache groups; one row in the factory's table.

    A family adds its own `attend`, which its layers call.
    """

    name: ClassVar[str]
    priority: ClassVar[int]
    config_class: ClassVar[type]
    """What its family is asked with; backends of other families are never asked."""

    @classmethod
    @abstractmethod
    def supports(cls, config: ConfigT) -> Support:
        """Yes, or no with the reason; called once, before anything is allocated."""

    @classmethod
    def priority_for(cls, config: ConfigT) -> int:
        """Of the backends that say yes, the highest one is taken."""
        return cls.priority

    @classmethod
    def note(cls, config: ConfigT) -> str:
        """What an explanation of the choice has to add about this backend, if anything."""
        return ""

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def prepare(self, batch: ForwardBatch, group: int) -> object:
        """What the layers of cache group `group` share in this step: `batch.prepared[group]`.

        Called once a step, before the first layer.
        """
        return None

    def warm_up(self, kv_cache: Tensor) -> None:
        """Compile what steps need that are not captured as graphs; once, before the first request.

        `kv_cache` is that of any layer of the group; nothing of it is read.
        """
        return

    def context_bytes(self, keys: int) -> int:
        """Memory that steps take at most because their queries see so many keys in all."""
        return 0


class AttentionBackend(Backend[AttentionConfig]):
    """Attention over keys and values, full or in a window."""

    config_class = AttentionConfig

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.scale = config.head_dim**-0.5
        self._rotate = rotation_for(config.capabilities)
        self._q_size = config.num_heads * config.head_dim

    def attend(
        self, qkv: Tensor, layer: int, window: int, batch: ForwardBatch, rotation: Rotation
    ) -> Tensor:
        """From the packed projection to attention's result [T, H * D]; writes K and V.

        `qkv` [T, (H + 2 Hk) D] holds query, key, then value heads; what is in it afterwards is not
        said. The step's keys and values go into layer's cache.
        """
        config = self.config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        slots = batch.slot_mapping[batch.layer_group[layer]]
        cache = batch.kv_cache[layer]
        self._rotate(qkv, batch.positions, slots, cache, rotation, heads, kv_heads, head_dim)
        batch.layer_written(layer)
        q = qkv[:, : self._q_size].view(len(qkv), heads, head_dim)
        return self.forward(q, layer, window, batch).flatten(1)

    @abstractmethod
    def forward(self, q: Tensor, layer: int, window: int, batch: ForwardBatch) -> Tensor:
        """Attention of `q` [T, H, D] (rows may be strided) over layer's cache -> [T, H, D].

        The step's keys and values are already in `batch.kv_cache[layer]`.
        """


class PartialBackend(AttentionBackend):
    """Takes some steps only and leaves the others to the backend below it."""

    def __init__(self, config: AttentionConfig, others: AttentionBackend) -> None:
        super().__init__(config)
        self.others = others

    def warm_up(self, kv_cache: Tensor) -> None:
        self.others.warm_up(kv_cache)
