# SPDX-License-Identifier: Apache-2.0
"""Layers of blocks in tiles against the blocks' weights: a device's kernels, or references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import LayerOptions, Shard
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.tiled_stored import TiledStoredLinear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.weights.gguf_blocks import gguf_format
from rtp_llm.layers.weights.shard_targets import LinearShards, ShardTarget
from rtp_llm.layers.weights.stored.fp4 import Nvfp4, PackedMxfp4
from rtp_llm.ops.gemm import nvfp4
from rtp_llm.ops.gemm.tiled_wna16_layout import TiledWna16, unpack
from rtp_llm.ops.gguf.integers import INTEGERS
from rtp_llm.ops.moe.mxfp4_blocks import dequantize_rows
from rtp_llm.testing.gguf.sized_blocks import sized_blocks, weights_of
from rtp_llm.testing.operator_checks import DEVICE

NATIVE = ops.has_kernel("tiled_wna16_linear", DEVICE)
ROWS, COLUMNS = 64, 512
LATE_HALF = Shard(COLUMNS, ((COLUMNS // 2, COLUMNS),))


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where there are no kernels, the references are tested."""
    torch.manual_seed(0)
    if not NATIVE:
        monkeypatch.setattr(ops, "has_kernel", lambda name, kind: name.startswith("tiled"))
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


def options(**formats: str) -> LayerOptions:
    stored = {name: gguf_format(kind) for name, kind in formats.items()}
    return LayerOptions(ModelSettings(dtype="bfloat16"), torch.device(DEVICE), formats=stored)


class Loaded:
    """A layer with a part of each of `kinds`, and its weight."""

    def __init__(self, *kinds: str, rows: int = ROWS, columns: Shard | None = None) -> None:
        parts = {f"part_{number}": kind for number, kind in enumerate(kinds)}
        size = COLUMNS if columns is None else columns.size
        shards = LinearShards(columns=columns)
        self.layer = TiledStoredLinear(
            size, dict.fromkeys(parts, rows), False, options(**parts), shards=shards
        )
        weights = []
        with torch.device("cpu"):
            for number, (_, target) in enumerate(self.layer.checkpoint_targets("layer")):
                kind = kinds[number]
                blocks = sized_blocks(kind, (rows, COLUMNS), 0.1, seed=number)
                weights.append(weights_of(kind, blocks)[:, -size:])
                if isinstance(target, ShardTarget):
                    assert target.columns is not None
                    ((first, last),) = target.columns.ranges
                    blocks, target = blocks[:, first:last].contiguous(), target.target
                target.write(0, blocks[:16])
                target.write(16, blocks[16:])
        self.weight = torch.cat(weights).to(DEVICE).double()
        for matrix in self.layer.matrices:
            if hasattr(matrix, "finish_loading"):
                matrix.finish_loading()

    def x(self, rows: int) -> Tensor:
        return torch.randn(rows, self.weight.shape[1], device=DEVICE).bfloat16()

    def product(self, x: Tensor) -> Tensor:
        return x.double() @ self.weight.T


def check(actual: Tensor, expected: Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
    assert actual.shape == expected.shape and actual.dtype is dtype
    error = (actual.double() - expected).norm() / expected.norm()
    assert error < 6e-3, f"relative error {error}"


@pytest.mark.parametrize("rows", [1, 8, 40])
@pytest.mark.parametrize("columns", [None, LATE_HALF], ids=["whole", "a rank's"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_products_and_what_surrounds_them(kind: str, columns: Shard | None, rows: int) -> None:
    loaded = Loaded(kind, kind, columns=columns)
    layer, x = loaded.layer, loaded.x(rows)
    check(layer(x), loaded.product(x))
    check(layer.float_product(x), loaded.product(x), torch.float32)
    size = loaded.weight.shape[1]
    norm = RMSNorm(size, 1e-6, options())
    norm.weight.data.uniform_(0.5, 1.5)
    normed = torch.nn.functional.rms_norm(x.double(), (size,), norm.weight.double(), norm.eps)
    gate, up = loaded.product(normed).chunk(2, dim=1)
    silu = GatedActivation("silu")
    check(layer.normed_gated(norm, x, None, silu), torch.nn.functional.silu(gate) * up)
    total = torch.randn(rows, 2 * ROWS, device=DEVICE).bfloat16()
    expected = total.double() + loaded.product(x)
    added = layer.add_to(total, x)
    assert (added is None) == (columns is None), "partial sums are not added yet"
    check(total if added is None else total + added, expected)


def test_parts_of_several_types() -> None:
    loaded = Loaded("Q4_K", "Q4_K", "Q2_K", "Q6_K")
    kinds = [type(matrix).__name__ for matrix in loaded.layer.matrices]
    assert kinds == ["TiledGgufMatrix", "FloatMatrix", "TiledGgufMatrix"]
    assert loaded.layer.fused() is None
    x = loaded.x(3)
    check(loaded.layer(x), loaded.product(x))


def test_rows_that_make_no_tiles_become_floats() -> None:
    loaded = Loaded("Q8_0", rows=24)
    assert loaded.layer.matrices[0].weight.is_floating_point()
    x, total = loaded.x(2), torch.zeros(2, 24, device=DEVICE).bfloat16()
    check(loaded.layer(x), loaded.product(x))
    assert loaded.layer.add_to(total, x) is not None


@pytest.mark.parametrize("rows", [1, 40])
def test_mxfp4_is_exact(rows: int) -> None:
    stored = {"part": PackedMxfp4()}
    settings = ModelSettings(dtype="bfloat16")
    layer = TiledStoredLinear(
        COLUMNS,
        {"part": ROWS},
        False,
        LayerOptions(settings, torch.device(DEVICE), formats=stored),
    )
    with torch.device("cpu"):
        blocks = torch.randint(256, (ROWS, COLUMNS // 2), dtype=torch.uint8)
        scales = torch.randint(112, 128, (ROWS, COLUMNS // 32), dtype=torch.uint8)
        weight = dequantize_rows(blocks, scales)
        for (_, target), tensor in zip(
            layer.checkpoint_targets("layer"), (blocks, scales), strict=True
        ):
            target.write(0, tensor)
    (matrix,) = layer.matrices
    matrix.finish_loading()
    packed = TiledWna16(matrix.weight.data, matrix.scale.data, None)
    assert torch.equal(unpack(packed, 5).cpu(), weight)
    x = torch.randn(rows, COLUMNS, device=DEVICE).bfloat16()
    check(layer(x), x.double() @ weight.to(DEVICE).double().T)


@pytest.mark.parametrize("rows", [1, 40])
def test_nvfp4_of_parts_with_scales_of_their_own(rows: int) -> None:
    stored = Nvfp4()
    settings, formats = ModelSettings(dtype="bfloat16"), {"q": stored, "k": stored}
    layer = TiledStoredLinear(
        COLUMNS,
        {"q": ROWS, "k": ROWS},
        False,
        LayerOptions(settings, torch.device(DEVICE), formats=formats),
    )
    targets = dict(layer.checkpoint_targets("layer"))
    weights = []
    with torch.device("cpu"):
        for number, part in enumerate("qk"):
            packed = torch.randint(256, (ROWS, COLUMNS // 2), dtype=torch.uint8)
            scales = (torch.rand(ROWS, COLUMNS // 16) + 0.5).to(torch.float8_e4m3fn)
            whole = torch.tensor([0.03 + 0.01 * number])
            targets[f"{part}.weight_scale"].write(0, scales)
            targets[f"{part}.weight_scale_2"].write(0, whole)
            targets[f"{part}.weight"].write(0, packed)
            weights.append(nvfp4.dequantize_rows(packed, scales.float() * whole))
    (matrix,) = layer.matrices
    matrix.finish_loading()
    weight = torch.cat(weights).to(DEVICE)
    found = unpack(TiledWna16(matrix.weight.data, matrix.scale.data, None), 6)
    assert (found - weight).norm() < 3e-4 * weight.norm()
    assert sum(each.nbytes for each in layer.parameters()) == weight.numel() * 7 // 8
    x = torch.randn(rows, COLUMNS, device=DEVICE).bfloat16()
    check(layer(x), x.double() @ weight.double().T)


def test_rows_of_an_embedding() -> None:
    matrix = Loaded("Q6_K").layer.matrices[0]
    ids = torch.tensor([3, 63, 0], dtype=torch.int32, device=DEVICE)
    with torch.device("cpu"):
        expected = weights_of("Q6_K", sized_blocks("Q6_K", (ROWS, COLUMNS), 0.1))
    check(matrix.lookup(ids), expected.to(DEVICE)[ids.long()].double())
