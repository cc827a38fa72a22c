"""The chunked delta rule in Triton against the reference, and compiled for other GPUs."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rtp_llm.kernels.triton.linear_attention import gated_delta_rule_kernel as kernels
from rtp_llm.kernels.triton.linear_attention.gated_delta_rule import gated_delta_chunks
from rtp_llm.ops.linear_attention.triton_linear_attention import takes_chunks
from rtp_llm.ops.linear_attention.triton_linear_attention_reference import (
    triton_gated_delta_chunks_reference,
)
from rtp_llm.testing.linear_attention_batches import DeltaBatch, DeltaShape, copies, random_counts

SHAPES = (
    DeltaShape(2, 4, 128, 128, torch.bfloat16),
    DeltaShape(1, 2, 128, 128, torch.float32),
    DeltaShape(1, 3, 40, 24, torch.float32),
    DeltaShape(1, 2, 128, 64, torch.float16, torch.bfloat16),
    DeltaShape(2, 2, 8, 8, torch.float32, torch.bfloat16),
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def arguments_of(batch: DeltaBatch) -> list[Any]:
    """Those of the operator, with a result that is known before."""
    *given, cu, lengths, read, write, _ = batch.rule()
    out = torch.ones(len(batch.x), batch.shape.heads, batch.shape.values, dtype=batch.x.dtype)
    return [*given, out, cu, lengths, read, write]


def check(batch: DeltaBatch) -> None:
    actual = arguments_of(batch)
    expected = copies(actual)
    with torch.device("cpu"):
        triton_gated_delta_chunks_reference(*expected)
    gated_delta_chunks(*actual)
    shape = batch.shape
    limit = 2e-5 if {shape.dtype, shape.state_dtype} == {torch.float32} else 2e-2
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=limit, atol=limit)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_batches(shape: DeltaShape) -> None:
    for _ in range(10):
        check(DeltaBatch.random(shape, random_counts()))


@pytest.mark.parametrize("counts", [[9], [63], [64], [65], [128, 8, 300], [0, 1, 0]])
def test_lengths_around_those_of_chunks(counts: list[int]) -> None:
    check(DeltaBatch.random(SHAPES[2], counts))


def test_equal_keys_are_solved_exactly() -> None:
    """The worst case of the inverse: all of a chunk's tokens write to one place."""
    shape = SHAPES[1]
    batch = DeltaBatch.random(shape, [200])
    batch.x[:, : 2 * shape.key_heads * shape.size] = 1.0
    batch.ba[:, : shape.heads] = 9.0
    batch.ba[:, shape.heads :] = -9.0
    check(batch)


def test_a_chunk_of_any_length_leaves_the_same_state() -> None:
    shape, whole = SHAPES[1], 130
    full = DeltaBatch.random(shape, [whole], behind=0)
    for tensor, value in zip(full.indices[1:], (whole, -1, 5), strict=True):
        tensor.fill_(value)
    expected = arguments_of(full)
    gated_delta_chunks(*expected)
    for cut in (9, 16, 63, 64, 65, 100, 121):
        halves = arguments_of(full)
        memory: list[Tensor] = shape.states()[1:]
        for rows, length, read in ((slice(0, cut), cut, -1), (slice(cut, whole), whole, 5)):
            count = rows.stop - rows.start
            numbers = torch.tensor([0, count, length, read, 5], dtype=torch.int32)
            indices = numbers[:2], numbers[2:3], numbers[3:4], numbers[4:]
            inputs = halves[0][rows], halves[1][rows], *halves[2:4]
            gated_delta_chunks(*inputs, *memory, halves[9][rows], *indices)
        torch.testing.assert_close(halves[9], expected[9], rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(memory[0][5], expected[4][5], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_these_shapes_are_taken(shape: DeltaShape) -> None:
    batch = DeltaBatch.random(shape, [20])
    assert takes_chunks(batch.x, batch.states[1])


@pytest.mark.parametrize(
    "shape",
    [
        DeltaShape(1, 1, 136, 8, torch.float32),
        DeltaShape(1, 1, 64, 64, torch.bfloat16),
        DeltaShape(1, 1, 128, 24, torch.float16),
    ],
    ids=str,
)
def test_others_are_left_to_the_other_kernel(shape: DeltaShape) -> None:
    batch = DeltaBatch.random(shape, [20])
    assert not takes_chunks(batch.x, batch.states[1])


TARGETS = {
    "MI300": (GPUTarget("hip", "gfx942", 64), 64 << 10),
    "A100": (GPUTarget("cuda", 80, 32), 163 << 10),
    "H100": (GPUTarget("cuda", 90, 32), 227 << 10),
}
_FLOATS = ("factors", "a_log", "dt_bias", "ring_u", "ring_g", "state")
_INDICES = ("folded", "cu", "seq_lens", "read", "write")


def _compiled(
    kernel: Any, element: str, constants: dict[str, Any], target: GPUTarget, warps: int
) -> Any:
    """The kernel for Qwen3-Next's heads, without such a GPU."""
    types = {f"{name}_ptr": "*fp32" for name in _FLOATS}
    types |= {f"{name}_ptr": "*i32" for name in _INDICES}
    signature = {
        name: "constexpr"
        if name in constants
        else types.get(name, f"*{element}" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=places)
    return triton.compile(source, target=target, options={"num_warps": warps})


@pytest.mark.parametrize("gpu", TARGETS)
@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_it_compiles_ahead_of_time(gpu: str, element: str) -> None:
    target, shared_bytes = TARGETS[gpu]
    wide = element == "fp32"
    common = {"KEY_HEADS": 16, "HEADS": 32, "KEY": 128, "PADDED_KEY": 128}
    solve = "tf32x3" if target.backend == "cuda" else "ieee"
    common["PRECISION"] = solve if wide else "ieee"
    own = {"RING": 16, "VALUE": 128, "COLUMNS": 16 if wide else 32, "STAGES": 1 if wide else 2}
    for kernel, constants, warps in (
        (kernels.invert_kernel, common | {"SOLVE": solve}, 4 if wide else 1),
        (kernels.score_kernel, common, 4),
        (kernels.advance_kernel, common | own, 4),
    ):
        made = _compiled(kernel, element, constants, target, warps)
        assert made.metadata.shared <= shared_bytes
