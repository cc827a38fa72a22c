"""Moves a checkpoint's tensors into a model, a few rows at a time.

Where the type is the same the file is read straight into the parameter; otherwise rows pass through
one small buffer. Nothing else of the checkpoint is ever in memory.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from rtp_llm.layers import WeightTarget, weight_targets
from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError, TensorEntry
from rtp_llm.loader.progress import Progress

_BUFFER_BYTES = 4 * 2**20
_LISTED = 100

Targets = dict[str, list[WeightTarget]]


class WeightError(ValueError):
    """Weights are missing, unknown, of the wrong shape or out of range; the message names them."""


def load_weights(
    model: nn.Module, checkpoint: Checkpoint, ignored: tuple[str, ...], progress: Progress
) -> None:
    """Fill every parameter of `model`; names that end in one of `ignored` are left out.

    Raises WeightError naming all missing, unknown and wrongly shaped weights, before any is read.
    """
    targets: Targets = defaultdict(list)
    for name, target in weight_targets(model):
        targets[name].append(target)
    _check(targets, checkpoint, ignored)
    wanted = [entry for name, entry in checkpoint.tensors.items() if name in targets]
    progress.start(sum(entry.size for entry in wanted))
    with _Reader() as reader:
        for entry in wanted:
            _load_tensor(reader, entry, targets[entry.name], progress)
    progress.finish()


def _load_tensor(
    reader: _Reader, entry: TensorEntry, targets: list[WeightTarget], progress: Progress
) -> None:
    step = max(1, _BUFFER_BYTES // max(1, entry.row_bytes))
    for start in range(0, entry.shape[0], step):
        stop = min(start + step, entry.shape[0])
        rows: Tensor | None = None
        for target in targets:
            memory = target.destination(start, stop)
            if memory is not None and _can_read_into(memory, entry.dtype):
                reader.read(entry, start, memory)
                continue
            if rows is None:
                rows = reader.rows(entry, start, stop)
            try:
                target.write(start, rows)
            except (OverflowError, ValueError) as error:
                raise WeightError(f"{entry.name} ({entry.file.name}): {error}") from error
        progress.advance((stop - start) * entry.row_bytes)


def _can_read_into(memory: Tensor, dtype: torch.dtype) -> bool:
    return memory.device.type == "cpu" and memory.dtype == dtype and memory.is_contiguous()


class _Reader:
    """Reads rows of tensors; keeps one file open and one buffer."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._descriptor = -1
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def rows(self, entry: TensorEntry, start: int, stop: int) -> Tensor:
        """Rows start to stop in the checkpoint's type; valid until the next call."""
        size = (stop - start) * entry.row_bytes
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.uint8)
        rows = self._buffer[:size].view(entry.dtype).view(stop - start, *entry.shape[1:])
        self.read(entry, start, rows)
        return rows

    def read(self, entry: TensorEntry, start: int, memory: Tensor) -> None:
        """Fill `memory` (contiguous, of the entry's type) with the rows from `start` on."""
        if memory.numel() == 0:
            return
        self._open(entry.file)
        left: memoryview = memory.view(-1).view(torch.uint8).numpy().data
        offset = entry.offset + start * entry.row_bytes
        while left:
            count = os.preadv(self._descriptor, [left], offset)
            if count == 0:
                raise CheckpointError(f"{entry.file} became shorter while {entry.name} was read")
            left, offset = left[count:], offset + count

    def _open(self, file: Path) -> None:
        if file == self._file:
            return
        self._close()
        self._descriptor = os.open(file, os.O_RDONLY)
        self._file = file
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._descriptor)
            self._file = None


def _check(targets: Targets, checkpoint: Checkpoint, ignored: tuple[str, ...]) -> None:
    found = checkpoint.tensors
    missing = [name for name in targets if name not in found]
    unknown = [name for name in found if name not in targets and not name.endswith(ignored)]
    shapes = [
        f"{name} is {list(found[name].shape)}, not {list(places[0].shape)}"
        for name, places in targets.items()
        if name in found and found[name].shape != places[0].shape
    ]
    problems = [
        *_list("missing", missing),
        *_list("not known to this architecture", unknown),
        *_list("wrongly shaped", shapes),
    ]
    if problems:
        lines = "\n  ".join(problems)
        raise WeightError(f"the weights in {checkpoint.folder} do not fit:\n  {lines}")


def _list(what: str, items: Iterable[str]) -> list[str]:
    listed = list(items)
    lines = [f"{what}: {item}" for item in listed[:_LISTED]]
    if len(listed) > _LISTED:
        lines.append(f"{what}: {len(listed) - _LISTED} more")
    return lines
