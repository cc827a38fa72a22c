"""The interface of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.rotation import Rotation, rotate_on
from rtp_llm.device import Support


@dataclass(frozen=True)
class AttentionConfig:
    """What a model on a device asks of attention; the same for all its layers but the window.

    `device_type` is one of rtp_llm.device.known_devices(); `windows` are the cache groups' windows
    (0 = full); `block_size` is in tokens; `capability` the compute capability of an NVIDIA GPU, for
    other devices and where it is not known (0, 0); `backend` the name of the one that was asked for
    ("auto": none).
    """

    device_type: str
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
    capability: tuple[int, int] = (0, 0)
    backend: str = "auto"


class AttentionBackend(ABC):
    """Computes attention over the paged cache; one file each, one row in the factory's table."""

    name: ClassVar[str]
    priority: ClassVar[int]

    @classmethod
    @abstractmethod
    def supports(cls, config: AttentionConfig) -> Support:
        """Yes, or no with the reason; called once, before anything is allocated."""

    @classmethod
    def rank(cls, config: AttentionConfig) -> int:
        """Of the backends that say yes, the highest one is taken."""
        return cls.priority

    @classmethod
    def remark(cls, config: AttentionConfig) -> str:
        """What an explanation of the choice has to add about this backend, if anything."""
        return ""

    def __init__(self, config: AttentionConfig) -> None:
        self.config = config
        self.scale = config.head_dim**-0.5
        self._rotate = rotate_on(config.device_type)
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

    def prepare(self, batch: ForwardBatch) -> ForwardBatch:
        """The batch with what its layers share; once a step, before the first layer."""
        return batch

    def warm_up(self, kv_cache: Tensor) -> None:
        """Compile what steps need that are not recorded as graphs; once, before the first request.

        `kv_cache` is any layer's; nothing of it is read.
        """
        return

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
