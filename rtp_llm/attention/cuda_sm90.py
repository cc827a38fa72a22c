# SPDX-License-Identifier: Apache-2.0
"""The backend of Hopper GPUs: prompts and mixed batches through the copy engine and wgmma."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import AttentionConfig
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.attention.triton import TritonAttentionBackend, compile_prompt_tiles
from rtp_llm.device import Support

_HEAD_DIMS = (64, 128, 256)
_MAX_GROUP = 128  # rows of a tile
_TILE_KEYS = 128
# Its tiles do not share the keys of a sequence. Triton splits them where rows are few: 264 programs
# of two on each of 132 multiprocessors for tiles of 64 rows, 8 programs each.
_FEW_ROWS = 64
_FEW_TILES = 264 // 8
_LONG = 8 * 128


class CudaSm90Backend(PagedAttentionBackend):
    """The operator with the fastest prompt kernel on Hopper.

    Single tokens go to Triton, as do short chunks (drafts, ends of cached prompts) of few
    sequences.
    """

    name: ClassVar[str] = "cuda_sm90"
    priority: ClassVar[int] = 20

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        block, group = config.block_size, config.num_heads // config.num_kv_heads
        if "wgmma" not in config.capabilities:
            return Support.no("it is written for wgmma, the matrix instructions of Hopper GPUs")
        if config.dtype not in (torch.bfloat16, torch.float16):
            return Support.no(f"{config.dtype} products do not run on tensor cores")
        if config.head_dim not in _HEAD_DIMS:
            return Support.no(f"heads of {config.head_dim}; it takes 64, 128 and 256")
        if group > _MAX_GROUP:
            return Support.no(f"{group} heads share keys; it takes at most {_MAX_GROUP}")
        if block % _TILE_KEYS and (block < 8 or _TILE_KEYS % block):
            return Support.no(f"blocks of {block}; it takes 8, 16, 32, 64 and multiples of 128")
        return super().supports(config)

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self._has_triton = importlib.util.find_spec("triton") is not None
        self._group = config.num_heads // config.num_kv_heads
        if self._has_triton:
            self._attend = TritonAttentionBackend.kernel()

    def warm_up(self, kv_cache: Tensor) -> None:
        if self._has_triton:
            compile_prompt_tiles(self.config, self.scale, kv_cache, split_only=True)

    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if batch.max_seqlen_q == 1 or self._has_few_rows(batch):
            return super().forward(q, layer, window, batch, sinks)
        return self._call(ops.paged_attention, q, layer, window, batch, sinks)

    def _has_few_rows(self, batch: ForwardBatch) -> bool:
        """Whether there are too few tiles to keep all multiprocessors busy."""
        return (
            self._has_triton
            and batch.max_seqlen_q * self._group <= _FEW_ROWS
            and batch.max_seqlen_k >= _LONG
            and len(batch.seq_lens) * self.config.num_kv_heads <= _FEW_TILES
        )
