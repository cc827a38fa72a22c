"""What every language model offers to the executor and to the loader."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rtp_llm.attention import AttentionConfig, ForwardBatch
from rtp_llm.layers import Layer
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.raw_config import RawConfig

_KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn}


def cache_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Number type of the KV cache for the setting kv_cache_dtype and activations of `dtype`."""
    return _KV_DTYPES.get(name, dtype)


@dataclass(frozen=True)
class ModelOptions:
    """What is chosen when a model is built, beyond its config.

    `device_type` is our name of the device, `device` torch's. `num_positions` is the longest
    sequence; `block_size` the KV cache's tokens per block, `kv_cache_dtype` ("auto": that of the
    activations) its number type. `capability`: see Device.capability.
    """

    dtype: torch.dtype
    device_type: str
    device: torch.device
    num_positions: int
    quantization: str = "none"
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    capability: tuple[int, int] = (0, 0)

    @property
    def kv_dtype(self) -> torch.dtype:
        """Number type of the KV cache."""
        return cache_dtype(self.kv_cache_dtype, self.dtype)

    def attention(self, config: ModelConfig) -> AttentionConfig:
        """What the attention backend of `config` is chosen for."""
        return AttentionConfig(
            device_type=self.device_type,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=self.block_size,
            windows=config.cache_windows,
            capability=self.capability,
        )


class CausalLM(Layer):
    """A language model over a paged KV cache.

    CONFIG_DEFAULTS: what a key that config.json leaves out means. IGNORED_WEIGHTS: endings of names
    of tensors in checkpoints that hold nothing to load.
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {}
    IGNORED_WEIGHTS: ClassVar[tuple[str, ...]] = ()
    config: ModelConfig

    @classmethod
    @abstractmethod
    def features(cls, raw: RawConfig) -> Features:
        """What this architecture adds to the common keys of config.json."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, hidden] of the batch's tokens, normalised; fills the KV caches."""

    @abstractmethod
    def warm_up(self, kv_cache: Tensor) -> None:
        """Compile what kernels compile when they are first called; `kv_cache` is any layer's."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden] -> float32 logits [R, vocabulary]."""
