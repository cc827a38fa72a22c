# SPDX-License-Identifier: Apache-2.0
"""The interface of backends, which compute a layer's sequence mixer over a paged cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.cache_scales import CacheScales
from rtp_llm.attention.cache_spec import CacheDtypes
from rtp_llm.attention.rotation import Rotation, normalize_heads, rotation_for
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Capabilities, Support


@dataclass(frozen=True)
class BackendOptions:
    """Options from the device and the settings that every backend receives.

    `capabilities` are the device's; `kv_dtype` is the dtype of keys and values in the cache;
    `block_size` is in tokens; `settings` are the model's.
    """

    capabilities: Capabilities
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    settings: ModelSettings = field(default_factory=ModelSettings)


class BackendConfig(Protocol):
    """The requirements of a cache group's layers on their backend: options and layer sizes.

    The class of the config selects the family of backends.
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


def cache_dtypes(config: BackendConfig | BackendOptions) -> CacheDtypes:
    """Return the cache dtypes that correspond to a backend config or its options."""
    return CacheDtypes.of(config.kv_dtype, config.dtype, config.settings)


@dataclass(frozen=True)
class AttentionConfig:
    """The config of attention layers; `windows` has the window of each cache group (0: full).

    `scale` multiplies products of queries and keys, 0: the usual head_dim^-0.5. `soft_cap` above 0:
    scores become soft_cap * tanh(score / soft_cap). See BackendOptions for the other fields.
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
    scale: float = 0.0
    settings: ModelSettings = field(default_factory=ModelSettings)

    @property
    def score_scale(self) -> float:
        """The factor of products of queries and keys."""
        return self.scale or self.head_dim**-0.5

    def __str__(self) -> str:
        windows = ", ".join(str(window) for window in self.windows if window)
        kind = f"window {windows}" if windows else "full"
        kind += ", and full" if windows and 0 in self.windows else ""
        kind += ", with sinks" if self.sinks else ""
        kind += f", scores capped at {self.soft_cap:g}" if self.soft_cap else ""
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
        """Whether the backend supports `config`, or why not; called before any allocation."""

    @classmethod
    def priority_for(cls, config: ConfigT) -> int:
        """The priority of this backend; the highest among the supporting backends wins."""
        return cls.priority

    @classmethod
    def note(cls, config: ConfigT) -> str:
        """An optional remark about this backend for explanations of the choice."""
        return ""

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def prepare(self, batch: ForwardBatch, group: int) -> object:
        """Compute the data that the layers of cache group `group` share in this step.

        Called once per step, before the first layer; stored as `batch.prepared[group]`.
        """
        return None

    def warm_up(self, kv_cache: Tensor) -> None:
        """Compile the kernels of steps that are not captured as graphs, before the first request.

        `kv_cache` is the cache of any layer of the group; its contents are not read.
        """
        return

    def context_bytes(self, keys: int) -> int:
        """Upper bound in bytes on the temporary memory of a step with queries over `keys` keys."""
        return 0


class AttentionBackend(Backend[AttentionConfig]):
    """Attention over keys and values, full or in a window."""

    config_class = AttentionConfig

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.scale = config.score_scale
        self._rotate = rotation_for(config.capabilities)
        self._q_size = config.num_heads * config.head_dim
        self._scales: dict[int, CacheScales] = {}

    def keep_scales(self, layer: int, scales: CacheScales) -> None:
        """Store keys and values of `layer`, in a cache of 8-bit floats, divided by `scales`."""
        self._scales[layer] = scales

    def attend(
        self,
        qkv: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        rotation: Rotation,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Compute attention [T, H * D] from the packed projection.

        `qkv` [T, (H + 2 Hk) D] holds query, key, then value heads; it may be overwritten. The
        step's keys and values are written to the layer's cache. `sinks` float32 [H] is a logit of
        each head that takes its share of the softmax and has no value; given iff `config.sinks`.
        """
        config = self.config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        slots = batch.slot_mapping[batch.layer_group[layer]]
        cache = batch.kv_cache[layer]
        batch.wait_for_layer(layer)
        scales = self._scales.get(layer)
        self._rotate(
            qkv, batch.positions, slots, cache, rotation, heads, kv_heads, head_dim, scales
        )
        batch.layer_written(layer)
        q = qkv[:, : self._q_size].view(len(qkv), heads, head_dim)
        return self.forward(q, layer, window, batch, sinks).flatten(1)

    def attend_shared(
        self, q: Tensor, layer: int, window: int, batch: ForwardBatch, rotation: Rotation
    ) -> Tensor:
        """Compute attention [T, H * D] of queries over keys and values that `layer` has written.

        `q` [T, H * D] is overwritten; it has a norm. Nothing is written to the cache.
        """
        heads = q.view(len(q), self.config.num_heads, self.config.head_dim)
        assert rotation.q_weight is not None, "queries of shared keys have a norm"
        weight, eps = rotation.q_weight, rotation.eps
        normalize_heads(heads, heads, weight, eps, rotation.cos_sin, batch.positions)
        return self.forward(heads, layer, window, batch).flatten(1)

    @abstractmethod
    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of `q` [T, H, D] (rows may be strided) over the layer's cache -> [T, H, D].

        The step's keys and values are already in `batch.kv_cache[layer]`.
        """


class PartialBackend(AttentionBackend):
    """A backend that handles some steps only and delegates all others to another backend."""

    def __init__(self, config: AttentionConfig, others: AttentionBackend) -> None:
        super().__init__(config)
        self.others = others

    def keep_scales(self, layer: int, scales: CacheScales) -> None:
        super().keep_scales(layer, scales)
        self.others.keep_scales(layer, scales)

    def warm_up(self, kv_cache: Tensor) -> None:
        self.others.warm_up(kv_cache)
