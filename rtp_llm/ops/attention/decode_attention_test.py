# SPDX-License-Identifier: Apache-2.0
"""Decode attention: the reference against separate operators, the kernel against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.testing.decode_steps import POSITIONS, DecodeStep, norms_and_rotation
from rtp_llm.testing.operator_checks import DEVICE, assert_near, kernel_runs
from rtp_llm.testing.paged_batches import Shape

needs_kernel = pytest.mark.skipif(
    not ops.has_kernel("decode_attention", DEVICE), reason="this device has no such kernel"
)
HALVES = (torch.bfloat16, torch.float16)
FLOAT8 = torch.float8_e4m3fn
LIMITS = {torch.bfloat16: 1.6e-2, torch.float16: 4e-3}
# One key, tiles and blocks that are not full, no sequence, several parts.
MIXED = [1, 2, 15, 16, 17, 0, 33, 300, 2000]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_right(step: DecodeStep, limit: float | None = None) -> None:
    """The kernel's result and cache match the reference's; nothing else is written."""
    other, untouched = step.copy(), step.cache.clone()
    with kernel_runs("decode_attention"):
        actual = ops.decode_attention(**step.arguments)
    expected = other.expected()
    assert_near(actual, expected, limit or LIMITS[actual.dtype])
    assert not step.arguments["counters"].any()
    written = bits(other.cache) != bits(untouched)
    assert torch.equal(bits(step.cache)[~written], bits(untouched)[~written])
    new, reference = step.cache.float()[written], other.cache.float()[written]
    # A sum in another order may round a key to a neighbour.
    unit = 0.13 if step.cache.dtype == FLOAT8 else 8e-3
    torch.testing.assert_close(new, reference, rtol=unit, atol=unit / 8)
    assert torch.equal(bits(step.cache[1]), bits(other.cache[1]))


def bits(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8 if cache.element_size() == 1 else torch.int16)


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize("norm_offset", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"soft_cap": 3.0}], ids=str)
def test_the_reference_is_what_separate_operators_do(
    with_norms: bool, norm_offset: float, options: dict[str, Any]
) -> None:
    shape = Shape(6, 2, 32)
    extra = norms_and_rotation(32, torch.float32, 24)
    if not with_norms:
        extra = {"cos_sin": extra["cos_sin"]}
    extra |= {"rotary_offset": 8, "norm_offset": norm_offset}
    step = DecodeStep.random(MIXED, shape, torch.float32, None, **extra, **options)
    given = step.copy().arguments
    out, heads = step.expected(), 6
    qkv, cache = given["qkv"].clone(), given["kv_cache"]
    if with_norms:
        weights = given["q_weight"], given["k_weight"]
        ops.qk_rms_norm(qkv, *weights, heads, 2, 1e-6, norm_offset)
    slots, positions = given["slot_mapping"], given["positions"]
    ops.rope_kv_write(qkv, positions, given["cos_sin"], cache, slots, heads, 2, 32, True, 8)
    q = qkv[:, : heads * 32].view(len(MIXED), heads, 32)
    starts = torch.arange(len(MIXED) + 1, dtype=torch.int32)
    lengths = (starts, given["seq_lens"], given["block_table"], 1, max(MIXED))
    separate = ops.paged_attention(q, cache, *lengths, given["scale"], **options)
    assert_near(out, separate.flatten(1), 1e-5)
    assert_near(torch.nan_to_num(step.cache), torch.nan_to_num(cache), 1e-5)
    assert not out[MIXED.index(0)].any()


@needs_kernel
@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 64), (16, 8, 128), (16, 1, 128), (6, 2, 128), (27, 3, 64), (8, 1, 256), (4, 2, 256)],
)
def test_heads_and_types(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, float8: bool
) -> None:
    options: dict[str, Any] = norms_and_rotation(head_dim, dtype)
    if float8:
        options |= {"k_scale": torch.tensor(0.25), "v_scale": torch.tensor([2.0])}
    shape = Shape(heads, kv_heads, head_dim)
    step = DecodeStep.random(MIXED, shape, dtype, FLOAT8 if float8 else None, **options)
    assert_right(step, 5e-2 if float8 else None)


@needs_kernel
@pytest.mark.parametrize("block_size", [8, 16, 64, 512])
@pytest.mark.parametrize("options", [{}, {"window": 1}, {"window": 40}, {"window": 700}], ids=str)
def test_blocks_and_windows(block_size: int, options: dict[str, Any]) -> None:
    shape = Shape(4, 2, 128, block_size)
    extra = norms_and_rotation(128, torch.bfloat16) | options
    assert_right(DecodeStep.random(MIXED, shape, torch.bfloat16, **extra))


@needs_kernel
@pytest.mark.parametrize(
    "options",
    [
        {"soft_cap": 4.0},
        {"norm_offset": 1.0},
        {"soft_cap": 4.0, "window": 100},
        {"is_neox": False},
        {"rotary": 64},
        {"rotary": 32, "rotary_offset": 96, "is_neox": False},
        {"norm": False},
        {"rotary": None},
        {"rotary": None, "norm": False, "early": True},
        {"eps": 0.5},
    ],
    ids=str,
)
def test_rotations_norms_and_caps(options: dict[str, Any]) -> None:
    rotary = options.pop("rotary", 128) if "rotary" in options else 128
    norm = options.pop("norm", True)
    extra = norms_and_rotation(128, torch.bfloat16, rotary or 128)
    if rotary is None:
        del extra["cos_sin"]
    if not norm:
        del extra["q_weight"], extra["k_weight"]
    assert_right(DecodeStep.random(MIXED, Shape(4, 2, 128), torch.bfloat16, **extra, **options))


@needs_kernel
@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_heads_of_qwen3_next(dtype: torch.dtype, float8: bool) -> None:
    extra = norms_and_rotation(256, dtype, 64) | {"norm_offset": 1.0}
    cache = FLOAT8 if float8 else None
    step = DecodeStep.random(MIXED, Shape(16, 2, 256), dtype, cache, **extra)
    assert_right(step, 5e-2 if float8 else None)


@needs_kernel
@pytest.mark.parametrize("batch", [1, 5, 40, 200])
def test_numbers_of_sequences(batch: int) -> None:
    lengths = torch.randint(0, 1200, (batch,)).tolist()
    extra = norms_and_rotation(128, torch.bfloat16)
    assert_right(DecodeStep.random(lengths, Shape(8, 4, 128), torch.bfloat16, **extra))


@needs_kernel
def test_a_sequence_has_the_same_bits_alone() -> None:
    """Where neither the batch nor the sequence is large enough to be cut."""
    lengths = [200, 7, 0, 129, 1, 250, 64]
    extra = norms_and_rotation(128, torch.bfloat16)
    step = DecodeStep.random(lengths, Shape(16, 8, 128), torch.bfloat16, **extra)
    together = ops.decode_attention(**step.copy().arguments)
    rows = ("qkv", "positions", "seq_lens", "slot_mapping", "block_table")
    for b in range(len(lengths)):
        alone = {name: step.arguments[name][b : b + 1] for name in rows}
        one = ops.decode_attention(**step.copy().arguments | alone)
        assert torch.equal(one[0], together[b])


@needs_kernel
def test_what_is_not_there_is_not_touched() -> None:
    """Blocks, slots and positions outside, and blocks that a table lacks: hidden, never read."""
    lengths = [100, 100, 100, 100, 100]
    extra = norms_and_rotation(128, torch.bfloat16)
    step = DecodeStep.random(lengths, Shape(4, 2, 128), torch.bfloat16, **extra)
    step.arguments["block_table"][0, 1] = -1
    step.arguments["block_table"][0, 3] = 2**30
    hidden = step.copy()
    hidden.arguments["block_table"] = step.arguments["block_table"].clone()
    hidden.arguments["block_table"][0, 3] = -1
    step.arguments["slot_mapping"][1] = 2**30
    step.arguments["slot_mapping"][2] = -1
    step.arguments["positions"][3] = POSITIONS
    actual, expected = ops.decode_attention(**step.arguments), hidden.expected()
    assert_near(actual[[0, 4]], expected[[0, 4]], 1.6e-2)
    assert not actual[1:4].any()


@needs_kernel
def test_no_sequence_at_all() -> None:
    step = DecodeStep.random([4], Shape(4, 2, 64), torch.float16)
    rows = ("qkv", "positions", "seq_lens", "slot_mapping", "block_table")
    none = {name: step.arguments[name][:0] for name in rows}
    assert ops.decode_attention(**step.arguments | none).shape == (0, 256)


@needs_kernel
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counters": torch.zeros(1, dtype=torch.int32)}, "expected 2 numbers at least"),
        ({"scale": 1.0, "window": -1}, "window is -1"),
        ({"rotary_offset": 2}, "rotary_offset 2"),
        ({"k_weight": None}, "go together"),
        ({"k_scale": torch.zeros(2)}, "expected one number"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    extra = norms_and_rotation(64, torch.float16)
    step = DecodeStep.random([4], Shape(4, 2, 64), torch.float16, **extra)
    with pytest.raises(RuntimeError, match=message):
        ops.decode_attention(**step.arguments | change)


@needs_kernel
@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        (Shape(4, 2, 80), torch.float16, "expected heads of 64 or 128"),
        (Shape(17, 1, 64), torch.float16, "17 query heads of 64"),
        (Shape(16, 1, 256), torch.float16, "of 256 in groups of at most 8"),
        (Shape(4, 2, 64), torch.float32, "expected bfloat16 or float16"),
        (Shape(4, 2, 64, 12), torch.float16, "a power of two from 8 on"),
        (Shape(4, 2, 64, 4), torch.float16, "a power of two from 8 on"),
    ],
    ids=str,
)
def test_heads_without_a_kernel(shape: Shape, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        ops.decode_attention(**DecodeStep.random([4], shape, dtype).arguments)


@needs_kernel
def test_decode_attention_is_traceable() -> None:
    extra = norms_and_rotation(64, torch.float16)
    step = DecodeStep.random([4, 9], Shape(4, 2, 64), torch.float16, **extra)
    torch.library.opcheck(
        torch.ops.rtp_llm.decode_attention.default,
        (),
        step.arguments | {"qkv": step.arguments["qkv"].contiguous()},
        test_utils=("test_schema", "test_faketensor"),
    )
