# SPDX-License-Identifier: Apache-2.0
"""The inputs of the fused operators, from a step and a model, under the reference's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from rtp_llm.compat.cache_layout import CacheLayout, check_layouts, vector_size
from rtp_llm.compat.rope_style import RopeSettings


class KvCacheDataType(IntEnum):
    """The dtype of the cache: that of the activations, or 8-bit floats."""

    BASE = 0
    FP8 = 2


@dataclass(frozen=True)
class AttentionConfigs:
    """Options common to all steps and layers of a model; raises ValueError for invalid ones.

    `kernel_tokens_per_block` (0: the same) is the block that kernels see, `tokens_per_block` the
    one that memory is given out in. `num_kernel_blocks` None: keys and values lie block by block,
    [N, 2, Hk, S, D]; a number N: in two planes, [2, N, S, Hk, D]. `cache_layout` is the order that
    these operators write, `reader_layout` (None: the same) the one that attention reads.
    """

    head_num: int
    kv_head_num: int
    size_per_head: int
    tokens_per_block: int
    max_seq_len: int
    rope_config: RopeSettings = field(default_factory=RopeSettings)
    kernel_tokens_per_block: int = 0
    num_kernel_blocks: int | None = None
    kv_cache_dtype: KvCacheDataType = KvCacheDataType.BASE
    fp8_output: bool = False  # also return 8-bit results, for attention kernels that take them
    fp8_dtype: torch.dtype = torch.float8_e4m3fn  # Device.float8() knows which a device has
    use_logn_attn: bool = False
    logn_train_length: int = 0
    qk_norm_eps: float = 1e-6
    cache_layout: CacheLayout = CacheLayout.PLAIN
    reader_layout: CacheLayout | None = None

    def __post_init__(self) -> None:
        block = self.kernel_block
        if block <= 0 or block & (block - 1):
            raise ValueError(f"kernel_tokens_per_block is {block}; expected a power of two")
        if self.tokens_per_block % block:
            raise ValueError(
                f"tokens_per_block is {self.tokens_per_block}; expected a multiple of "
                f"kernel_tokens_per_block, {block}"
            )
        if self.num_kernel_blocks is not None and 2 * self.num_kernel_blocks - 1 > 2**31 - 1:
            raise ValueError(f"{self.num_kernel_blocks} blocks are more than int32 offsets reach")
        if self.use_logn_attn and self.logn_train_length < 2:
            raise ValueError("use_logn_attn needs logn_train_length, the trained length")
        rope = self.rope_config
        if rope.offset + rope.dim > self.size_per_head:
            raise ValueError(
                f"channels [{rope.offset}, {rope.offset + rope.dim}) turn in heads of "
                f"{self.size_per_head}"
            )

        self._check_layout()

    def _check_layout(self) -> None:
        check_layouts(self.cache_layout, self.reader_layout or self.cache_layout)
        if self.cache_layout is CacheLayout.PLAIN:
            return
        if self.num_kernel_blocks is not None:
            raise ValueError(
                f"cache layout {self.cache_layout.value!r} lies block by block; expected "
                "num_kernel_blocks None"
            )
        width = vector_size(1 if self.kv_cache_dtype == KvCacheDataType.FP8 else 2)
        if self.kernel_block % width or self.size_per_head % width:
            raise ValueError(
                f"cache layout {self.cache_layout.value!r} with blocks of {self.kernel_block} and "
                f"heads of {self.size_per_head}; expected multiples of {width}"
            )

    @property
    def kernel_block(self) -> int:
        """Number of tokens in a block as kernels see it."""
        return self.kernel_tokens_per_block or self.tokens_per_block


@dataclass(frozen=True)
class ContextParallelInfo:
    """The tokens of a prompt that this rank holds, by their positions in the prompt."""

    shuffle_indices: Tensor


@dataclass
class PyAttentionInputs:
    """One step of B requests and T new tokens; int32, host mirrors where no suffix says device.

    kv_cache_kernel_block_id_* [B, M] name blocks as kernels see them, negative = none. Decode:
    sequence_lengths [B], the index of the new token. combo_position_ids [T] or [T * 3] are checked
    against max_seq_len only on the host; on the device, tokens beyond it are skipped.
    """

    is_prefill: bool
    input_lengths: Tensor
    prefix_lengths: Tensor | None = None
    sequence_lengths: Tensor | None = None
    input_lengths_device: Tensor | None = None
    prefix_lengths_device: Tensor | None = None
    sequence_lengths_device: Tensor | None = None
    cu_seqlens_device: Tensor | None = None
    cu_kv_seqlens_device: Tensor | None = None
    kv_cache_kernel_block_id_device: Tensor | None = None
    padding_offset: Tensor | None = None
    combo_position_ids: Tensor | None = None
    is_s_padded: bool = False
    is_cuda_graph: bool = False
    dtype: torch.dtype = torch.bfloat16
    context_parallel_info: ContextParallelInfo | None = None


@dataclass(frozen=True)
class LayerKVCache:
    """One layer's cache in the layout of AttentionConfigs, with scales if it is 8-bit.

    kv_scale_base float32: [N, 2, Hk, S] block by block, [2, N, S, Hk] in planes.
    """

    kv_cache_base: Tensor
    kv_scale_base: Tensor | None = None
