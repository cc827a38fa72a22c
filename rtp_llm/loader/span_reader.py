# SPDX-License-Identifier: Apache-2.0
"""Reads rows of a checkpoint's file into memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.span import Span
from rtp_llm.model_folder import open_file

# Fills a tensor (contiguous, of the entry's type) with a chunk of the span.
Read = Callable[[Span, Tensor], None]


@contextmanager
def reader(span: Span) -> Iterator[Read]:
    """Context in which chunks of `span` can be read. Raises CheckpointError if the file shrank.

    If columns are left out, the file is mapped: pages without such columns are never touched, and
    one call copies many rows, whereas reading row by row would take the interpreter's lock for each
    of them.
    """
    with open_file(span.entry.file) as file:
        if span.columns is None:
            yield partial(_read, file.fileno())
            return
        with _mapped_rows(file.fileno(), span) as rows:
            yield partial(_copy, rows, span.start)


def _read(file: int, chunk: Span, memory: Tensor) -> None:
    if memory.numel() == 0:
        return
    left: memoryview = memory.view(-1).view(torch.uint8).numpy().data
    offset = chunk.offset
    while left:
        count = os.preadv(file, [left], offset)
        if count == 0:
            raise _became_shorter(chunk)
        left, offset = left[count:], offset + count


@contextmanager
def _mapped_rows(file: int, span: Span) -> Iterator[list[np.ndarray]]:
    """The mapped parts of the span's rows, uint8 [rows, row_bytes], as the only entry of a list.

    The list is emptied at the end, since a file stays mapped as long as an array refers to it.
    """
    stride = span.entry.row_bytes
    size = (span.rows - 1) * stride + span.row_bytes
    if os.fstat(file).st_size < span.offset + size:
        raise _became_shorter(span)
    inside = span.offset % mmap.ALLOCATIONGRANULARITY
    begin = span.offset - inside
    with mmap.mmap(file, inside + size, access=mmap.ACCESS_READ, offset=begin) as mapped:
        flat = np.frombuffer(mapped, np.uint8, size, inside)
        shape = span.rows, span.row_bytes
        rows = [np.lib.stride_tricks.as_strided(flat, shape, (stride, 1))]
        del flat
        try:
            yield rows
        finally:
            rows.clear()


def _copy(rows: list[np.ndarray], first: int, chunk: Span, memory: Tensor) -> None:
    content = memory.view(-1).view(torch.uint8).numpy().reshape(chunk.rows, chunk.row_bytes)
    np.copyto(content, rows[0][chunk.start - first : chunk.stop - first])


def _became_shorter(span: Span) -> CheckpointError:
    return CheckpointError(f"{span.entry.file} became shorter while it was read")
