# SPDX-License-Identifier: Apache-2.0
"""WriteCacheStoreOp: offers a layer's blocks to the store once the device has written them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.cache.transfer.layout import PromptBlocks

if TYPE_CHECKING:
    from rtp_llm.device.streams import Event
    from rtp_llm.worker.cache.transfer.interfaces import SendBuffer
    from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout


@dataclass(frozen=True)
class CacheStoreInputs:
    """What a step writes for other workers, as tensors on the host.

    input_lengths_host int32 [decoder + context], those of sequences that only decode first;
    prefix_lengths_host int32 [context], multiples of the block size; host_kv_cache_offset, for each
    cache group int32 [decoder + context, blocks], numbers of physical blocks or -1; request_id
    int64 [context]; request_pd_separation bool [context], whether another worker wants it;
    cache_keys int64 [context, keys]; stored_blocks int32 [context], how many of the first blocks
    were stored by earlier steps (None: none).

    Raises:
        ValueError: a tensor has another rank, length, type or device, or a prefix is no multiple.
    """

    input_lengths_host: Tensor
    prefix_lengths_host: Tensor
    host_kv_cache_offset: tuple[Tensor, ...]
    request_id: Tensor
    request_pd_separation: Tensor
    cache_keys: Tensor
    stored_blocks: Tensor | None = None

    def __post_init__(self) -> None:
        expected = {
            "input_lengths_host": (self.input_lengths_host, torch.int32, 1),
            "prefix_lengths_host": (self.prefix_lengths_host, torch.int32, 1),
            "request_id": (self.request_id, torch.int64, 1),
            "request_pd_separation": (self.request_pd_separation, torch.bool, 1),
            "cache_keys": (self.cache_keys, torch.int64, 2),
        }
        for group, table in enumerate(self.host_kv_cache_offset):
            expected[f"host_kv_cache_offset[{group}]"] = (table, torch.int32, 2)
        if self.stored_blocks is not None:
            expected["stored_blocks"] = (self.stored_blocks, torch.int32, 1)
        for name, (tensor, dtype, rank) in expected.items():
            _check(name, tensor, dtype, rank)
        self._check_lengths()

    def _check_lengths(self) -> None:
        batch, context = len(self.input_lengths_host), len(self.prefix_lengths_host)
        if context > batch:
            raise ValueError(f"{context} prefix lengths for a batch of {batch} sequences")
        counts = {
            "request_id": len(self.request_id),
            "request_pd_separation": len(self.request_pd_separation),
            "cache_keys": len(self.cache_keys),
        }
        if self.stored_blocks is not None:
            counts["stored_blocks"] = len(self.stored_blocks)
        for name, count in counts.items():
            if count != context:
                raise ValueError(f"{name} has {count} entries, one for each of {context} prompts")
        for group, table in enumerate(self.host_kv_cache_offset):
            if len(table) != batch:
                raise ValueError(
                    f"host_kv_cache_offset[{group}] has {len(table)} rows for {batch} sequences"
                )


def _check(name: str, tensor: Tensor, dtype: torch.dtype, rank: int) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}, it must be on the host")
    if tensor.dtype != dtype or tensor.dim() != rank:
        raise ValueError(
            f"{name} is {tensor.dtype} of {tensor.dim()} dimensions, not {dtype} of {rank}"
        )


Submit = Callable[[Callable[[], object], Callable[[], object] | None], None]


class WriteCacheStoreOp:
    """Made once a forward pass, called with each layer after its keys and values were written.

    It waits for nothing: a task of the writer waits for the device's event, then offers the blocks.
    Tasks own what they use, numbers of blocks included.
    """

    def __init__(
        self,
        inputs: CacheStoreInputs,
        layout: CacheLayout,
        send_buffer: SendBuffer | None,
        submit: Submit,
        new_event: Callable[[], Event],
    ) -> None:
        """``send_buffer`` None: there is no store, so nothing is written."""
        self._send_buffer = send_buffer
        self._submit = submit
        self._new_event = new_event
        self._prompts = plan_blocks(inputs, layout)

    def __call__(self, layer: int) -> None:
        """Give the layer's blocks to the writer. Raises what ``submit`` raises."""
        send_buffer, prompts = self._send_buffer, self._prompts
        if send_buffer is None or not prompts:
            return
        event = self._new_event()
        event.record()
        self._submit(lambda: send_buffer.send(layer, prompts), event.synchronize)


def plan_blocks(inputs: CacheStoreInputs, layout: CacheLayout) -> tuple[PromptBlocks, ...]:
    """The blocks of each prompt that another worker wants, the ones stored before left out.

    Prefix and input together are ``prefix / S + ceil(input / S)`` blocks, from block 0 on: the
    other worker may lack the prefix. Windows keep the ones that later tokens read.

    Raises:
        ValueError: a prefix is no multiple of the block size, or there are fewer keys than blocks.
    """
    size = layout.block_size
    decoders = len(inputs.input_lengths_host) - len(inputs.prefix_lengths_host)
    lengths = inputs.input_lengths_host.numpy()[decoders:]
    prefixes = inputs.prefix_lengths_host.numpy()
    wanted = np.flatnonzero(inputs.request_pd_separation.numpy())
    prompts = []
    for row in wanted.tolist():
        prefix, length = int(prefixes[row]), int(lengths[row])
        if prefix % size:
            raise ValueError(f"a prefix of {prefix} tokens is no multiple of the block size {size}")
        end = prefix // size + -(-length // size)
        first = 0 if inputs.stored_blocks is None else int(inputs.stored_blocks[row])
        keys = inputs.cache_keys[row].numpy()
        if end > len(keys):
            raise ValueError(f"{end} blocks, and cache_keys names {len(keys)}")
        tables = [table[decoders + row].numpy() for table in inputs.host_kv_cache_offset]
        parts = _parts(layout, tables, keys, first, end)
        prompts.append(PromptBlocks(int(inputs.request_id[row]), parts))
    return tuple(prompts)


def _parts(
    layout: CacheLayout,
    tables: Sequence[NDArray[np.int32]],
    keys: NDArray[np.int64],
    first: int,
    end: int,
) -> tuple[BlockPart, ...]:
    return tuple(
        layout.part(group, first, table[first:end], keys) for group, table in enumerate(tables)
    )
