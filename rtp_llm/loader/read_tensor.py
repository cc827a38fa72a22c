# SPDX-License-Identifier: Apache-2.0
"""Reads small tensors, or parts of large ones, of a checkpoint into memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.model_folder import open_file


def read_numbers(entry: TensorEntry, start: int = 0, count: int | None = None) -> Tensor:
    """The numbers [count] of a tensor from number `start` on, by default all of them.

    Raises CheckpointError if the file has become shorter.
    """
    count = math.prod(entry.shape) - start if count is None else count
    size = count * entry.dtype.itemsize
    with open_file(entry.file) as file:
        file.seek(entry.offset + start * entry.dtype.itemsize)
        content = bytearray()
        while len(content) < size and (part := file.read(size - len(content))):
            content += part
    if len(content) < size:
        raise CheckpointError(f"{entry.file} became shorter while it was read")
    return (
        torch.frombuffer(content, dtype=entry.dtype) if count else torch.empty(0, dtype=entry.dtype)
    )
