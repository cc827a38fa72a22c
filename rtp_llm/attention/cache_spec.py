# SPDX-License-Identifier: Apache-2.0
"""Specs of the cache a layer keeps per sequence, and groups of layers with equal specs.

The cache's memory, its plan, `rtp-llm explain`, the runtime's groups and the transfer between
workers are all made from these specs. A block is what the runtime hands out: `block_size` tokens of
keys and values, or one recurrent state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rtp_llm.config.model_settings import ModelSettings

Kind = Literal["full", "sliding_window", "recurrent"]
# Each state of a block begins at a multiple of this, as vectorised kernels ask.
STATE_ALIGNMENT = 256


@dataclass(frozen=True)
class CacheDtypes:
    """The dtypes of cache contents: keys and values, layer inputs, recurrent states."""

    keys_and_values: torch.dtype
    inputs: torch.dtype
    states: torch.dtype = torch.float32

    @classmethod
    def of(
        cls, keys_and_values: torch.dtype, inputs: torch.dtype, settings: ModelSettings
    ) -> CacheDtypes:
        """Build the dtypes, with the state dtype that ``settings`` select."""
        states: torch.dtype = getattr(torch, settings.mamba_ssm_cache_dtype)
        return cls(keys_and_values, inputs, states)


@dataclass(frozen=True)
class FullAttentionSpec:
    """Keys and values of all tokens: `heads` KV heads of `dim` elements each."""

    heads: int
    dim: int
    dtype: torch.dtype

    kind: ClassVar[Kind] = "full"
    window: ClassVar[int] = 0

    @property
    def memory_dtype(self) -> torch.dtype:
        return self.dtype

    def layer_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """The shape of one layer's cache: [2, N, S, Hk, D], keys then values."""
        return 2, num_blocks, block_size, self.heads, self.dim

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of one layer."""
        return math.prod(self.layer_shape(1, block_size)) * self.dtype.itemsize

    @property
    def identity(self) -> str:
        """Kind and sizes of a token in a word, for workers that compare theirs."""
        window = f"-{self.window}" if self.window else ""
        return f"{self.kind}{window}:2x{self.heads}x{self.dim}"

    def __str__(self) -> str:
        return f"full attention, {self.heads} KV heads of {self.dim} in {_name(self.dtype)}"


@dataclass(frozen=True)
class SlidingWindowSpec(FullAttentionSpec):
    """Keys and values of the last `window` tokens, a query's own included."""

    window: int = 0  # type: ignore[misc]  # a constant of the parent

    kind: ClassVar[Kind] = "sliding_window"

    def __str__(self) -> str:
        return (
            f"sliding window of {self.window}, {self.heads} KV heads of {self.dim} "
            f"in {_name(self.dtype)}"
        )


class RowSpec(ABC):
    """One row of `size` elements for each token, which all heads share."""

    dtype: torch.dtype

    kind: ClassVar[Kind] = "full"
    window: ClassVar[int] = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of elements of a row."""

    @property
    def memory_dtype(self) -> torch.dtype:
        return self.dtype

    def layer_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """The shape of one layer's cache: [1, N, S, 1, size]."""
        return 1, num_blocks, block_size, 1, self.size

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of one layer."""
        return math.prod(self.layer_shape(1, block_size)) * self.dtype.itemsize


@dataclass(frozen=True)
class MlaSpec(RowSpec):
    """One latent of `rank`, then one rotated key of `rope` elements for each token (MLA)."""

    rank: int
    rope: int
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return self.rank + self.rope

    @property
    def identity(self) -> str:
        """Kind and sizes of a token in a word, for workers that compare theirs."""
        return f"{self.kind}:{self.rank}+{self.rope}"

    def __str__(self) -> str:
        return f"MLA, latents of {self.rank} and keys of {self.rope} in {_name(self.dtype)}"


@dataclass(frozen=True)
class IndexerSpec(RowSpec):
    """One key of `dim` elements for each token, of a lightning indexer."""

    dim: int
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return self.dim

    @property
    def identity(self) -> str:
        """Kind and size of a token in a word, for workers that compare theirs."""
        return f"{self.kind}:indexer-{self.dim}"

    def __str__(self) -> str:
        return f"lightning indexer, keys of {self.dim} in {_name(self.dtype)}"


@dataclass(frozen=True)
class RecurrentSpec:
    """States of fixed size: one block holds all of a layer's states after some token.

    `shapes` and `dtypes` describe one layer's states, for example the states of a convolution
    and of a linear attention. `rollback`: after a step of at most `rollback + 1` tokens, a block
    still holds the states after each of these tokens.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    rollback: int = 0

    kind: ClassVar[Kind] = "recurrent"
    window: ClassVar[int] = 0
    memory_dtype: ClassVar[torch.dtype] = torch.uint8

    def layer_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """The shape of one layer's cache: [1, N, bytes], regardless of the block size."""
        return 1, num_blocks, self.block_bytes(block_size)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of the states of one layer, padded to STATE_ALIGNMENT each."""
        return self._offsets[-1]

    def states(self, layer: Tensor) -> tuple[Tensor, ...]:
        """Each state of a layer's cache [1, N, bytes] as [N, *shape], in the same memory."""
        states = zip(self._offsets, self.shapes, self.dtypes, strict=False)
        return tuple(
            layer[0, :, at : at + math.prod(shape) * dtype.itemsize]
            .view(dtype)
            .view(layer.shape[1], *shape)
            for at, shape, dtype in states
        )

    @property
    def identity(self) -> str:
        """Kind and sizes in a word, for workers that compare theirs."""
        states = zip(self.shapes, self.dtypes, strict=True)
        sizes = (f"{'x'.join(map(str, shape))}.{_name(dtype)}" for shape, dtype in states)
        return f"{self.kind}:{'+'.join(sizes)}"

    @property
    def _offsets(self) -> list[int]:
        """Where each state begins, and where the last one ends."""
        ends = [0]
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = math.prod(shape) * dtype.itemsize
            ends.append(ends[-1] + -(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT)
        return ends

    def __str__(self) -> str:
        states = (
            f"{'x'.join(map(str, shape))} in {_name(dtype)}"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )
        return f"recurrent states of {' and '.join(states)}"


CacheSpec = FullAttentionSpec | SlidingWindowSpec | MlaSpec | IndexerSpec | RecurrentSpec
# Groups come in this order, windows from narrow to wide.
_ORDER: tuple[Kind, ...] = ("full", "sliding_window", "recurrent")


@dataclass(frozen=True)
class CacheGroup:
    """The layers of one spec: they share a block table and a budget of blocks."""

    spec: CacheSpec
    layers: tuple[int, ...]

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block, of all layers of the group."""
        return len(self.layers) * self.spec.block_bytes(block_size)

    @property
    def identity(self) -> str:
        """Spec and layers in a word: "sliding_window-512:2x8x128:0-3,5"."""
        return f"{self.spec.identity}:{_ranges(self.layers)}"

    def __str__(self) -> str:
        text = f"{len(self.layers)} {'layer' if len(self.layers) == 1 else 'layers'} of {self.spec}"
        if self.spec.kind != "recurrent":
            return text
        return f"{text}; {self.block_bytes(1) / 2**10:.1f} KiB a state"


@dataclass(frozen=True)
class CacheGroups:
    """The specs of a model's layers, in order (None: a layer without a cache), and their groups.

    ``here``: the layers on this pipeline stage; None: all. Every stage has the groups of the whole
    model, some of which may have no layer on the stage.
    """

    specs: tuple[CacheSpec | None, ...]
    here: range | None = None

    @classmethod
    def of(cls, specs: Sequence[CacheSpec | None]) -> CacheGroups:
        return cls(tuple(specs))

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Full attention first, then windows from narrow to wide, then recurrent states."""
        distinct = {spec: None for spec in self.specs if spec is not None}
        ordered = sorted(distinct, key=lambda spec: (_ORDER.index(spec.kind), spec.window))
        return tuple(
            CacheGroup(
                spec, tuple(i for i, each in enumerate(self.specs) if self._is(i, each, spec))
            )
            for spec in ordered
        )

    def _is(self, layer: int, own: CacheSpec | None, spec: CacheSpec) -> bool:
        return own == spec and (self.here is None or layer in self.here)

    @cached_property
    def layer_group(self) -> tuple[int, ...]:
        """The group index of each layer; -1 if it has no cache or is on another stage."""
        found = {layer: g for g, group in enumerate(self.groups) for layer in group.layers}
        return tuple(found.get(layer, -1) for layer in range(len(self.specs)))

    @property
    def rollback(self) -> int | None:
        """Number of tokens that all layers' states can be rolled back; None without states."""
        specs = (spec for spec in self.specs if isinstance(spec, RecurrentSpec))
        return min((spec.rollback for spec in specs), default=None)

    @property
    def token_bytes(self) -> int:
        """Bytes per token in all layers together, not counting recurrent states."""
        return sum(group.block_bytes(1) for group in self.groups if group.spec.kind != "recurrent")


def _ranges(layers: tuple[int, ...]) -> str:
    """0, 1, 2, 5 as "0-2,5"."""
    there = set(layers)
    starts = [layer for layer in layers if layer - 1 not in there]
    ends = [layer for layer in layers if layer + 1 not in there]
    pairs = zip(starts, ends, strict=True)
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in pairs)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
