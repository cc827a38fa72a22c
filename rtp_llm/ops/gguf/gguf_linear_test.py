# SPDX-License-Identifier: Apache-2.0
"""Products and lookups with weights in GGUF blocks, against what the blocks stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.gguf.types import TYPES
from rtp_llm.ops.gguf.blocks import DEQUANTIZERS
from rtp_llm.ops.gguf.gguf_linear_reference import gguf_linear_reference, rows_of
from rtp_llm.ops.gguf.kinds import BLOCK_BYTES, INTERLEAVED
from rtp_llm.testing.gguf.random_blocks import random_blocks
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    TORCH_TYPE,
    cpu_only,
    kernel_runs,
    running,
)

NATIVE = ops.has_kernel("gguf_linear", TORCH_TYPE)
native_only = pytest.mark.skipif(not NATIVE, reason="limits of kernels that this device lacks")
KINDS = {each.name: each for each in TYPES.values() if each.name in BLOCK_BYTES}
_ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Where there is no kernel, the reference is tested."""
    torch.manual_seed(0)
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


def file_rows(kind: str, rows: int, columns: int) -> Tensor:
    """Rows of random blocks as they are in files, with weights that are of about one size."""
    made = KINDS[kind]
    blocks = random_blocks(made, rows * columns // made.elements)
    if kind == "MXFP4":
        blocks[:, 0] = 120 + blocks[:, 0] % 10
    return torch.from_numpy(blocks.reshape(rows, -1).view(np.int8)).clone()


def activations(rows: int, columns: int) -> Tensor:
    """Activations so small that no result is too large for float16."""
    return torch.randn(rows, columns) / 64


def interleaved(blocks: Tensor, kind: str) -> Tensor:
    made = blocks.clone()
    ops.gguf_interleave(made, kind)
    return made


def quantized(x: Tensor) -> Tensor:
    """The floats that the 8 bits of x stand for."""
    groups = x.float().unflatten(1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.tensor(127.0) / largest  # 127 / largest would be rounded twice
    return ((groups * inverse).round() * (largest / 127)).flatten(1)


def test_the_table_is_that_of_the_files() -> None:
    assert {each.name: each.block_bytes for each in KINDS.values()} == BLOCK_BYTES
    assert set(BLOCK_BYTES) == set(DEQUANTIZERS) - {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_a_lookup_gives_the_weights_bit_by_bit(kind: str) -> None:
    """Rows of whole panels, and those after them, of every dtype."""
    file = file_rows(kind, 37, 512)
    ids = torch.tensor([0, 15, 31, 32, 36, 5], dtype=torch.int32)
    blocks, expected = interleaved(file, kind), rows_of(file, kind)[ids]
    for dtype in FLOAT_DTYPES:
        out = torch.empty(len(ids), 512, dtype=dtype)
        with kernel_runs("gguf_embedding"):
            ops.gguf_embedding(ids, blocks, kind, out)
        assert torch.equal(out, expected.to(dtype))


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_float_activations_meet_the_weights_as_they_are(
    isa: str, dtype: torch.dtype, kind: str
) -> None:
    file = file_rows(kind, 51, 512)
    x, bias, blocks = activations(7, 512).to(dtype), torch.randn(51), interleaved(file, kind)
    for added, wide in ((None, False), (bias.to(dtype), True)):
        with running(isa), kernel_runs("gguf_linear"):
            actual = ops.gguf_linear(x, blocks, kind, added, 32, wide)
        given = None if added is None else added.float()
        expected = gguf_linear_reference(x.float(), file, kind, given)
        assert actual.dtype is (torch.float32 if wide else dtype)
        limit = _ROUNDING[actual.dtype] * expected.abs().max()
        assert (actual.float() - expected).abs().max() <= limit


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("kind", sorted(INTERLEAVED))
def test_activations_in_8_bits(isa: str, dtype: torch.dtype, kind: str) -> None:
    """Nothing but x is rounded: few rows, whose weights are decoded in registers, and more."""
    file = file_rows(kind, 51, 512)
    bias, blocks = torch.randn(51).to(dtype), interleaved(file, kind)
    for rows in (1, 3, 40):
        x = activations(rows, 512).to(dtype)
        with running(isa), kernel_runs("gguf_linear"):
            actual = ops.gguf_linear(x, blocks, kind, bias)
        expected = gguf_linear_reference(quantized(x), file, kind, bias.float())
        limit = _ROUNDING[dtype] * expected.abs().max()
        assert (actual.float() - expected).abs().max() <= limit


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_activations_in_16_bits(isa: str, dtype: torch.dtype, kind: str) -> None:
    """Two hundred times closer to the product of floats than those in 8 bits."""
    file = file_rows(kind, 51, 512)
    x, bias, blocks = activations(33, 512).to(dtype), torch.randn(51), interleaved(file, kind)
    for rows in (1, 33):
        with running(isa), kernel_runs("gguf_linear"):
            actual = ops.gguf_linear(x[:rows], blocks, kind, bias.to(dtype), 16, True)
        expected = gguf_linear_reference(x[:rows].float(), file, kind, bias.to(dtype).float())
        assert actual.dtype is torch.float32
        assert (actual - expected).abs().max() <= 5e-5 * expected.abs().max()


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_a_row_gives_the_same_bits_alone_and_in_a_batch(isa: str, kind: str) -> None:
    file = file_rows(kind, 35, 512)
    x, blocks = torch.randn(41, 512), interleaved(file, kind)
    with running(isa):
        for bits in (8, 16, 32) if kind in INTERLEAVED else (8,):
            for rows in (2, 3, 4, 5, 6, 7, 9, 33, 41):
                together = ops.gguf_linear(x[:rows], blocks, kind, None, bits)
                alone = ops.gguf_linear(x[rows - 1 : rows], blocks, kind, None, bits)
                assert torch.equal(alone[0], together[-1])


@native_only
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_is_not_finite_gives_nan_alone(isa: str) -> None:
    blocks, x = interleaved(file_rows("Q4_K", 16, 256), "Q4_K"), torch.randn(3, 256)
    x[1, 7], x[2, 9] = torch.inf, torch.nan
    with running(isa):
        out = ops.gguf_linear(x, blocks, "Q4_K")
    assert out[0].isfinite().all()
    assert out[1:].isnan().all()


@pytest.mark.parametrize("isa", ISAS if NATIVE else [""])
@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_experts_give_the_bits_of_a_product_each(isa: str, kind: str) -> None:
    """Some of many rows, of one, and of none; a part of each expert's rows, with biases."""
    counts, first, outputs, columns = (0, 1, 40, 0, 2, 3), 16, 51, 256
    file = file_rows(kind, len(counts) * 70, columns).unflatten(0, (len(counts), 70))
    blocks = file[:, first : first + outputs]
    for of_expert in blocks:
        ops.gguf_interleave(of_expert, kind)
    bias = torch.randn(len(counts), 60)[:, 4 : 4 + outputs]
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    x = torch.randn(sum(counts) + 2, columns + 32)[:, :columns]
    for bits in (8, 16, 32) if kind in INTERLEAVED else (8,):
        for added in (None, bias):
            with running(isa), kernel_runs("gguf_grouped_linear"):
                found = ops.gguf_grouped_linear(x, blocks, kind, offsets, added, bits)
            assert found.shape == (len(x), outputs)
            for expert, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
                own = None if added is None else added[expert].contiguous()
                with running(isa):
                    alone = ops.gguf_linear(x[start:end], blocks[expert], kind, own, bits)
                assert torch.equal(found[start:end], alone)


@native_only
def test_wrong_arguments_of_experts_are_named() -> None:
    blocks, x = file_rows("Q8_0", 12, 64).unflatten(0, (3, 4)), torch.zeros(5, 64)
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="gguf_grouped_linear: kind is Q9"):
        ops.gguf_grouped_linear(x, blocks, "Q9", offsets)
    with pytest.raises(RuntimeError, match="blocks must be contiguous for each expert"):
        ops.gguf_grouped_linear(x, blocks[:, ::2], "Q8_0", offsets)
    with pytest.raises(RuntimeError, match=r"gguf_grouped_linear: x is .* rows of 64 columns"):
        ops.gguf_grouped_linear(x[:, :32], blocks, "Q8_0", offsets)
    with pytest.raises(RuntimeError, match="gguf_grouped_linear: activation_bits is 4"):
        ops.gguf_grouped_linear(x, blocks, "Q8_0", offsets, None, 4)
    with pytest.raises(RuntimeError, match="gguf_grouped_linear: offsets"):
        ops.gguf_grouped_linear(x, blocks, "Q8_0", offsets[:3])
    with pytest.raises(RuntimeError, match="gguf_grouped_linear: bias"):
        ops.gguf_grouped_linear(x, blocks, "Q8_0", offsets, torch.zeros(3, 3))


@cpu_only
def test_offsets_outside_of_x_are_named() -> None:
    blocks, x = file_rows("Q8_0", 12, 64).unflatten(0, (3, 4)), torch.zeros(5, 64)
    for wrong in ([0, 3, 2, 5], [0, 2, 2, 6], [-1, 2, 2, 5]):
        with pytest.raises(IndexError, match="gguf_grouped_linear: offsets"):
            ops.gguf_grouped_linear(x, blocks, "Q8_0", torch.tensor(wrong, dtype=torch.int32))


def test_rows_with_a_stride_and_none() -> None:
    file = file_rows("Q8_0", 16, 64)
    blocks, x = interleaved(file, "Q8_0"), torch.randn(5, 96)
    part = ops.gguf_linear(x[:, :64], blocks, "Q8_0")
    assert torch.equal(part, ops.gguf_linear(x[:, :64].contiguous(), blocks, "Q8_0"))
    assert ops.gguf_linear(torch.empty(0, 64), blocks, "Q8_0").shape == (0, 16)


@native_only
def test_wrong_arguments_are_named() -> None:
    blocks, x = file_rows("Q4_K", 4, 256), torch.zeros(2, 256)
    with pytest.raises(RuntimeError, match="kind is Q9; expected a type of blocks such as Q4_K"):
        ops.gguf_linear(x, blocks, "Q9")
    with pytest.raises(RuntimeError, match="expected rows of whole blocks of Q6_K, 210 bytes each"):
        ops.gguf_linear(x, blocks, "Q6_K")
    with pytest.raises(RuntimeError, match="the blocks hold rows of 256 columns"):
        ops.gguf_linear(x[:, :128], blocks, "Q4_K")
    with pytest.raises(RuntimeError, match="activation_bits is 4; expected 8, 16 or 32"):
        ops.gguf_linear(x, blocks, "Q4_K", None, 4)
    with pytest.raises(RuntimeError, match="gguf_linear: bias"):
        ops.gguf_linear(x, blocks, "Q4_K", torch.zeros(3))
    with pytest.raises(RuntimeError, match="gguf_embedding: out"):
        ops.gguf_embedding(torch.zeros(2, dtype=torch.int32), blocks, "Q4_K", x[:, :128])


@cpu_only
def test_ids_outside_of_the_table_are_named() -> None:
    blocks, x = file_rows("Q4_K", 4, 256), torch.zeros(2, 256)
    with pytest.raises(IndexError, match="0 <= id < 4"):
        ops.gguf_embedding(torch.tensor([4], dtype=torch.int32), blocks, "Q4_K", x[:1])


def test_the_operators_are_traceable() -> None:
    blocks = interleaved(file_rows("Q6_K", 16, 256), "Q6_K")
    utils = ("test_schema", "test_faketensor")
    linear = torch.ops.rtp_llm.gguf_linear.default
    given = (torch.randn(3, 256).bfloat16(), blocks, "Q6_K", None, 16, True)
    torch.library.opcheck(linear, given, test_utils=utils)
    grouped = torch.ops.rtp_llm.gguf_grouped_linear.default
    experts, offsets = blocks.unflatten(0, (2, 8)), torch.tensor([0, 1, 3], dtype=torch.int32)
    given = (torch.randn(3, 256), experts, "Q6_K", offsets, None, 16)
    torch.library.opcheck(grouped, given, test_utils=utils)
    ids, out = torch.tensor([1, 2], dtype=torch.int32), torch.empty(2, 256)
    embedding = torch.ops.rtp_llm.gguf_embedding.default
    torch.library.opcheck(embedding, (ids, blocks, "Q6_K", out), test_utils=utils)
