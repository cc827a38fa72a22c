# SPDX-License-Identifier: Apache-2.0
"""Stored formats whose outputs lie on the second axis, as those of GPTQ and AWQ do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import (
    DivisionError,
    LayerOptions,
    Shard,
    ShardTarget,
    make_linear,
    weight_targets,
)
from rtp_llm.layers.weights.shard_targets import LinearShards
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat

ROWS, COLUMNS, GROUP = 12, 16, 4


class Transposed(StoredFormat):
    """numbers [columns, rows], and scales [columns / GROUP, rows] of groups of input columns."""

    name = "transposed"
    title = "transposed groups"
    column_block = GROUP
    marker = ("numbers", torch.int8)

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"scales": (columns // GROUP, rows), "numbers": (columns, rows)}

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        if suffix == "scales":
            columns = columns and columns.blocks(GROUP, suffix)
        return columns, rows

    def float_targets(self, weight: Tensor) -> NamedTargets:
        scales = torch.empty(self.shapes(*weight.shape)["scales"])
        yield "scales", _Target(scales, None)
        yield "numbers", _Target(weight, scales)


class _Target:
    """Dequantises numbers with scales, or takes scales as they are."""

    def __init__(self, memory: Tensor, scales: Tensor | None) -> None:
        self._memory, self._scales = memory, scales
        self.loads_last = scales is not None
        self.shape = tuple(memory.shape if scales is None else memory.T.shape)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        if self._scales is None:
            self._memory[start : start + len(rows)] = rows
            return
        group = torch.arange(start, start + len(rows)) // GROUP
        self._memory[:, start : start + len(rows)] = (rows.float() * self._scales[group]).T


FORMAT = Transposed()


def options() -> LayerOptions:
    formats = dict.fromkeys(("q", "k"), FORMAT)
    return LayerOptions(ModelSettings(dtype="float32"), torch.device("cpu"), formats=formats)


def load(layer: nn.Module, sources: dict[str, Tensor]) -> None:
    outer = nn.Module()
    outer.layer = layer
    for name, target in weight_targets(outer):
        tensor = sources[name]
        assert target.shape == tensor.shape
        if isinstance(target, ShardTarget):
            for axis, shard in enumerate((target.rows, target.columns)):
                if shard is not None:
                    ((start, end),) = shard.ranges
                    tensor = tensor.narrow(axis, start, end - start)
            target = target.target
        for start in range(0, len(tensor), 3):
            target.write(start, tensor[start : start + 3])


def test_parts_and_shards() -> None:
    torch.manual_seed(0)
    sources, exact = {}, {}
    for part in ("q", "k"):
        numbers = torch.randint(-127, 128, (COLUMNS, ROWS), dtype=torch.int8)
        scales = torch.rand(COLUMNS // GROUP, ROWS)
        sources |= {f"{part}.numbers": numbers, f"{part}.scales": scales}
        exact[part] = (numbers * scales.repeat_interleave(GROUP, 0)).T
    whole = make_linear(COLUMNS, {"q": ROWS, "k": ROWS}, False, options())
    load(whole, sources)
    assert torch.equal(whole.weight, torch.cat([exact["q"], exact["k"]]))
    rows = Shard(ROWS, ((6, 12),))
    layer = make_linear(
        COLUMNS,
        {"q": 6, "k": 6},
        False,
        options(),
        shards=LinearShards(dict.fromkeys(("q", "k"), rows)),
    )
    load(layer, sources)
    assert torch.equal(layer.weight, torch.cat([exact["q"][6:], exact["k"][6:]]))
    columns = LinearShards(columns=Shard(COLUMNS, ((8, 16),)))
    layer = make_linear(8, {"q": ROWS}, False, options(), shards=columns)
    load(layer, {name: tensor for name, tensor in sources.items() if name[0] == "q"})
    assert torch.equal(layer.weight, exact["q"][:, 8:])


def test_a_group_is_not_split_between_ranks() -> None:
    columns = LinearShards(columns=Shard(COLUMNS, ((0, 6),)))
    with pytest.raises(DivisionError, match=r"q \(columns\) would be split at 6 of 16"):
        make_linear(6, {"q": ROWS}, False, options(), shards=columns)


def test_outputs_in_several_ranges_are_refused() -> None:
    rows = LinearShards({"q": Shard(ROWS, ((0, 2), (6, 8)))})
    layer = make_linear(COLUMNS, {"q": 4}, False, options(), shards=rows)
    with pytest.raises(DivisionError, match=r"columns \(\(0, 2\), \(6, 8\)\) of a tensor"):
        dict(weight_targets(layer, "layer."))
