# SPDX-License-Identifier: Apache-2.0
"""MLA on Hopper GPUs: decode steps through the copy engine and wgmma."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.mla import MlaConfig
from rtp_llm.attention.mla_step import MlaPart
from rtp_llm.attention.mla_triton import TritonMlaBackend
from rtp_llm.device import Support

_SIZES = (512, 64)  # of a latent and a rotated key
_TILE_KEYS = 64
_LEAST_BLOCK = 8
# Its tiles have 64 rows: with so few heads and sequences Triton's of 16 were faster on an H200.
_FEW_HEADS = 16
_FEW_SEQUENCES = 64


class CudaSm90MlaBackend(TritonMlaBackend):
    """Its own kernel where each sequence has one new token, 64 heads a block; else Triton's."""

    name: ClassVar[str] = "cuda_sm90"
    priority: ClassVar[int] = 20

    @classmethod
    def supports(cls, config: MlaConfig) -> Support:
        block = config.block_size
        if "wgmma" not in config.capabilities:
            return Support.no("it is written for wgmma, the matrix instructions of Hopper GPUs")
        if not ops.has_kernel("mla_decode", config.capabilities.torch_type):
            return Support.no("the operator library has no mla_decode")
        if config.dtype not in (torch.bfloat16, torch.float16):
            return Support.no(f"{config.dtype} products do not run on tensor cores")
        if (config.latent_size, config.rope_size) != _SIZES:
            return Support.no(f"it takes latents of {_SIZES[0]} and keys of {_SIZES[1]}")
        if block % _TILE_KEYS and (block < _LEAST_BLOCK or _TILE_KEYS % block):
            return Support.no(f"blocks of {block}; it takes 8, 16, 32 and multiples of 64")
        return super().supports(config)

    def attend_latents(self, q: Tensor, cache: Tensor, part: MlaPart) -> Tensor:
        is_decode = part.max_seqlen_q == 1 and len(q) == len(part.seq_lens)
        is_small = self.config.num_heads <= _FEW_HEADS and len(q) < _FEW_SEQUENCES
        if not is_decode or is_small:
            return super().attend_latents(q, cache, part)
        return ops.mla_decode(
            q,
            cache,
            part.cu_seqlens_q,
            part.seq_lens,
            part.block_table,
            self.config.latent_size,
            part.max_seqlen_k,
            self.config.scale,
        )
