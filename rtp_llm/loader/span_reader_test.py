# SPDX-License-Identifier: Apache-2.0
"""Rows and columns of tensors at any place of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm.loader import CheckpointError
from rtp_llm.loader.span import Span
from rtp_llm.loader.span_reader import reader
from rtp_llm.loader.tensor_entry import TensorEntry


def stored(folder: Path, offset: int, *shape: int) -> tuple[TensorEntry, torch.Tensor]:
    """A tensor that follows `offset` bytes of a file and ends it."""
    tensor = torch.randn(shape).to(torch.bfloat16)
    file = folder / "file"
    content = tensor.view(-1).view(torch.uint8).numpy().tobytes()
    file.write_bytes(b"x" * offset + content)
    return TensorEntry("name", torch.bfloat16, shape, file, offset), tensor


@pytest.mark.parametrize("offset", [0, 6, 4096, 5000])
@pytest.mark.parametrize("shape", [(7, 5), (300, 40), (4, 3000), (5, 6, 3)], ids=str)
def test_pieces_are_those_of_the_tensor(
    tmp_path: Path, offset: int, shape: tuple[int, ...]
) -> None:
    entry, tensor = stored(tmp_path, offset, *shape)
    width = shape[1]
    for columns in (None, (0, 1), (1, width - 1), (width // 2, width)):
        span = Span(entry, 1, shape[0], [], columns=columns)
        got = torch.zeros(span.rows, *span.row_shape, dtype=torch.bfloat16)
        assert span.size == got.nbytes
        with reader(span) as read:
            for chunk in span.chunks(1000):
                read(chunk, got[chunk.place : chunk.place + chunk.rows])
        expected = tensor[1:] if columns is None else tensor[1:, slice(*columns)]
        assert torch.equal(got, expected)


@pytest.mark.parametrize("columns", [None, (2, 4)])
def test_a_file_that_became_shorter_is_named(
    tmp_path: Path, columns: tuple[int, int] | None
) -> None:
    entry, _ = stored(tmp_path, 10, 8, 4)
    entry.file.write_bytes(entry.file.read_bytes()[:-1])
    span = Span(entry, 0, 8, [], columns=columns)
    memory = torch.zeros(8, *span.row_shape, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match="file became shorter"), reader(span) as read:
        read(span, memory)
