# SPDX-License-Identifier: Apache-2.0
"""rotate_and_store against its reference: layouts, norms, axes, caches of 8 bits, odd indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.rope.fused_rope_reference import rotate_and_store_reference
from rtp_llm.ops.schema import OPERATORS
from rtp_llm.testing.operator_checks import DEVICE, FLOAT_DTYPES, assert_near, cpu_only, kernel_runs
from rtp_llm.testing.rope_layouts import LAYOUTS as COMMON
from rtp_llm.testing.rope_layouts import MAX_POSITIONS, rotary_table

BLOCK = 8
LAYOUTS = [*COMMON, (2, 1, 512, 512, 0)]
# Where the host cannot read them, numbers may lead out of their tables; the CPU raises.
OUTSIDE = 0 if DEVICE == "cpu" else 1

every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def case(lengths: list[int], layout: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Ragged requests whose tokens are stored by offsets; one block of each request is missing."""
    heads, kv_heads, head_dim, rotary_dim, offset = layout
    tokens, requests, width = sum(lengths), len(lengths), MAX_POSITIONS // BLOCK
    packed = torch.randn(tokens, heads + 2 * kv_heads, head_dim + 3).to(dtype)[..., :head_dim]
    rows = torch.randperm(2 * requests * width + 4)[: 2 * requests * width].int()
    offsets = rows.reshape(requests, 1, 2, width)
    offsets[:, :, :, 1] = -1
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    cache = torch.zeros(len(rows) + 4, BLOCK, kv_heads, head_dim).to(dtype)
    return {
        "q": packed[:, :heads],
        "k": packed[:, heads : heads + kv_heads],
        "v": packed[:, heads + kv_heads :],
        "q_out": torch.zeros(tokens, heads, head_dim).to(dtype),
        "cos_sin": rotary_table(rotary_dim),
        "cu_seqlens": cu_seqlens,
        "past_lengths": torch.randint(0, MAX_POSITIONS // 2, (requests,), dtype=torch.int32),
        "offsets": offsets,
        "k_cache": cache,
        "v_cache": cache,
        "rotary_offset": offset,
    }


def some_positions(tokens: int) -> torch.Tensor:
    """Some of them in no table, where such tokens are left out."""
    return torch.randint(-OUTSIDE, MAX_POSITIONS + OUTSIDE, (tokens,))


def names() -> list[str]:
    """Arguments in the order of the schema."""
    inside = OPERATORS["rotate_and_store"].schema.partition("(")[2].rpartition(") ->")[0]
    return [part.split()[-1].partition("=")[0] for part in inside.split(", ")]


DEFAULTS = {
    "eps": 1e-6,
    "norm_offset": 0.0,
    "is_neox": True,
    "rotary_offset": 0,
    "height_pairs": 0,
    "width_pairs": 0,
    "axes_interleaved": False,
    "log_length": 0,
    "padded_queries": 0,
}


def check(given: dict[str, Any], tolerance: float | None = None) -> dict[str, Any]:
    """Runs the kernel and the reference on copies, compares everything; returns the kernel's."""
    copies: list[dict[str, Any]] = []
    for _ in range(2):
        shared: dict[int, torch.Tensor] = {}
        copies.append(
            {
                name: shared.setdefault(id(value), value.clone())
                if isinstance(value, torch.Tensor)
                else value
                for name, value in given.items()
            }
        )
    actual, expected = copies
    with kernel_runs("rotate_and_store"):
        ops.rotate_and_store(**actual)
    full = DEFAULTS | expected
    rotate_and_store_reference(**{name: full.get(name) for name in names()})
    for name, value in actual.items():
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point():
                assert torch.equal(value, expected[name]), name
            elif value.dtype.itemsize == 1:
                difference = value.float() - expected[name].float()
                assert (difference.abs() <= 0.13 * expected[name].float().abs() + 0.01).all(), name
                assert (difference == 0).float().mean() > 0.98, name
            else:
                assert_near(value, expected[name], tolerance)
    return actual


@every_dtype
@pytest.mark.parametrize("is_neox", [True, False])
def test_ragged_requests_equal_the_reference(dtype: torch.dtype, is_neox: bool) -> None:
    for layout in LAYOUTS:
        for lengths in ([], [1], [3, 0, 20, 1], [0, 0]):
            given = case(lengths, layout, dtype) | {"is_neox": is_neox}
            check(given)
            check(given | {"q_out": None})


@every_dtype
def test_norm_of_heads_comes_before_the_rotation(dtype: torch.dtype) -> None:
    for layout in LAYOUTS:
        weights = {
            name: (torch.rand(layout[2]) + 0.5).to(dtype) for name in ("q_weight", "k_weight")
        }
        check(case([5, 9], layout, dtype) | weights)
        check(case([5, 9], layout, dtype) | weights | {"norm_offset": 1.0})


def test_norm_equals_the_operators_one_after_another() -> None:
    given = case([6, 7], LAYOUTS[1], torch.bfloat16)
    weights = [(torch.rand(64) + 0.5).bfloat16() for _ in range(2)]
    packed = torch.cat((given["q"], given["k"], given["v"]), dim=1).flatten(1)
    ops.qk_rms_norm(packed, *weights, 4, 2, 1e-6)
    positions = torch.cat(
        [past + torch.arange(n) for past, n in zip(given["past_lengths"], (6, 7), strict=True)]
    ).int()
    ops.rope_kv_write(packed, positions, given["cos_sin"], None, None, 4, 2, 64, True)
    ops.rotate_and_store(**given, q_weight=weights[0], k_weight=weights[1])
    assert_near(given["q_out"], packed.view(13, 8, 64)[:, :4])


@every_dtype
def test_results_may_be_the_inputs_and_lie_in_one_tensor(dtype: torch.dtype) -> None:
    given = case([4, 5], LAYOUTS[1], dtype)
    out = torch.zeros(9, 8, 64).to(dtype)
    parts = {"q_out": out[:, :4], "k_out": out[:, 4:6], "v_out": out[:, 6:]}
    check(given | parts)
    ops.rotate_and_store(**given | parts)
    packed = torch.cat((given["q"], given["k"], given["v"]), dim=1)
    q, k = packed[:, :4], packed[:, 4:6]
    same = {"q": q, "k": k, "v": packed[:, 6:], "q_out": q, "k_out": k}
    ops.rotate_and_store(**given | same)
    # Not to the bit: other strides may take another kernel, which contracts products otherwise.
    assert_near(packed, out)


@every_dtype
def test_one_token_of_each_request(dtype: torch.dtype) -> None:
    given = case([1] * 13, LAYOUTS[1], dtype) | {"cu_seqlens": None}
    check(given)
    check(given | {"positions": some_positions(13).int()})


@pytest.mark.parametrize("interleaved", [True, False])
def test_pairs_turn_by_the_position_of_their_axis(interleaved: bool) -> None:
    for layout, height, width in ((LAYOUTS[1], 11, 10), (LAYOUTS[2], 8, 13), (LAYOUTS[4], 3, 3)):
        axes = {"height_pairs": height, "width_pairs": width, "axes_interleaved": interleaved}
        for dtype in (torch.int32, torch.int64):
            positions = torch.randint(0, MAX_POSITIONS, (12, 3), dtype=dtype)
            check(case([5, 7], layout, torch.float32) | axes | {"positions": positions})


def test_queries_beyond_the_trained_length_grow() -> None:
    check(case([30, 20], LAYOUTS[1], torch.float32) | {"log_length": 16})


def test_rows_of_queries_may_be_padded() -> None:
    out = torch.zeros(4 * 9, 4, 64)
    given = case([3, 0, 9, 2], LAYOUTS[1], torch.float32) | {"q_out": out, "padded_queries": 9}
    done = check(given)["q_out"].view(4, 9, 4, 64)
    assert done[0, :3].any()
    assert not done[0, 3:].any()
    assert not done[1].any()


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e4m3fnuz], ids=str)
@every_dtype
def test_caches_and_results_of_8_bits(kind: torch.dtype, dtype: torch.dtype) -> None:
    for layout in (LAYOUTS[1], LAYOUTS[2], LAYOUTS[4]):
        given = case([6, 9], layout, dtype)
        given["v"][0] *= 300
        cache = torch.zeros(given["k_cache"].shape).to(kind)
        scales = torch.zeros(cache.shape[:3])
        given |= {"k_cache": cache, "v_cache": cache, "scales": scales}
        given["q_out"] = torch.zeros(given["q_out"].shape).to(kind)
        done = check(given)
        assert set(done["scales"].flatten().tolist()) == {0.0, 1.0}
        check(given | {"k_scale": torch.tensor([0.5]), "v_scale": torch.tensor([3.0])})


@pytest.mark.parametrize("kind", [None, torch.float8_e4m3fn], ids=str)
@every_dtype
def test_caches_in_runs_and_chunks(kind: torch.dtype | None, dtype: torch.dtype) -> None:
    for layout in (LAYOUTS[1], LAYOUTS[2], LAYOUTS[4]):
        given = case([6, 9], layout, dtype)
        rows, size, heads, channels = given["k_cache"].shape
        for run, chunk in ((1, channels), (4, 1), (2, 2), (1, 8), (8, 16)):
            shape = (rows, heads, size // run, channels // chunk, run, chunk)
            cache = torch.zeros(shape).to(kind or dtype).permute(0, 2, 4, 1, 3, 5)
            values = torch.zeros(rows, heads, channels, size).to(kind or dtype)
            values = values.permute(0, 3, 1, 2)[:, :, None, :, :, None]
            check(given | {"k_cache": cache, "v_cache": values})


def test_every_number_becomes_the_nearest_of_8_bits() -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    numbers = numbers[~numbers.isnan()]
    numbers = torch.cat((numbers, numbers.new_zeros(-len(numbers) % 64))).view(-1, 1, 64)
    for kind, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e4m3fnuz, 240.0)):
        out = torch.zeros(numbers.shape).to(kind)
        ops.rotate_and_store(numbers, numbers, k_out=out)
        expected = numbers.float().clamp(-largest, largest).to(kind)
        assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_slots_of_flat_buffers(dtype: torch.dtype) -> None:
    given = case([4, 8], LAYOUTS[1], torch.bfloat16) | {"offsets": None}
    slots = torch.randperm(40)[:12].to(dtype)
    slots[3], slots[4] = -1, 40 if OUTSIDE else -1
    buffers = [torch.zeros(40, 1, 2, 64).bfloat16() for _ in range(2)]
    check(given | {"slots": slots, "k_cache": buffers[0], "v_cache": buffers[1]})


@every_dtype
@pytest.mark.parametrize("layout", [(4, 2, 64, 64, 0), (3, 1, 128, 64, 32), (5, 1, 80, 48, 0)])
def test_many_tokens(dtype: torch.dtype, layout: tuple[int, ...]) -> None:
    """GPUs have kernels of their own for them."""
    heads, kv_heads, head_dim, _, _ = layout
    given = case([20] * 60 + [0, 3, 61], layout, dtype)
    if not OUTSIDE:
        given["past_lengths"][-1] = MAX_POSITIONS - 61
    tokens = len(given["q"])
    packed = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(dtype)
    given["q"], given["k"] = packed[:, :heads], packed[:, heads:-kv_heads]
    given["v"] = packed[:, -kv_heads:]
    weights = {name: (torch.rand(head_dim) + 0.5).to(dtype) for name in ("q_weight", "k_weight")}
    others = {"k_out": torch.zeros(given["k"].shape).to(dtype), "q_out": None}
    padded = {"q_out": torch.zeros(63 * 61, heads, head_dim).to(dtype), "padded_queries": 61}
    for more in ({}, weights, others, padded, {"cos_sin": None}):
        check(given | more)
    positions = some_positions(tokens)
    slots = torch.randperm(tokens + 8 + OUTSIDE)[:tokens].int() - 1
    cache = torch.zeros(tokens + 7, 1, kv_heads, head_dim).to(dtype)
    apart = {"cu_seqlens": None, "past_lengths": None, "offsets": None, "positions": positions}
    check(given | apart | {"slots": slots, "k_cache": cache, "v_cache": cache.clone()})


@cpu_only
@pytest.mark.parametrize("axes", [False, True])
@pytest.mark.parametrize("bad", [-1, MAX_POSITIONS])
def test_positions_outside_the_table_raise(axes: bool, bad: int) -> None:
    positions = torch.zeros(9, 3, dtype=torch.int64) if axes else torch.zeros(9).int()
    positions.view(9, -1)[6, -1] = bad
    given = case([4, 5], LAYOUTS[1], torch.float32) | {"positions": positions}
    given |= {"height_pairs": 11, "width_pairs": 10} if axes else {}
    before = given["k_cache"].clone()
    with pytest.raises(IndexError, match=f"token 6 is at position {bad}; expected 0 <= position"):
        ops.rotate_and_store(**given)
    assert torch.equal(given["k_cache"], before), "nothing is written"
    ops.rotate_and_store(**given | {"cos_sin": None, "height_pairs": 0, "width_pairs": 0})


@cpu_only
@pytest.mark.parametrize("turned", [True, False])
def test_places_outside_the_block_table_raise(turned: bool) -> None:
    given = case([4, 5], LAYOUTS[1], torch.float32) | ({} if turned else {"cos_sin": None})
    given["past_lengths"][:] = torch.tensor([3, MAX_POSITIONS - 4])
    given["positions"] = torch.zeros(9).int()
    with pytest.raises(IndexError, match=f"token 8 is number {MAX_POSITIONS} of its sequence"):
        ops.rotate_and_store(**given)
    given["past_lengths"][:] = torch.tensor([-2, 0])
    with pytest.raises(IndexError, match="token 0 is number -2 of its sequence"):
        ops.rotate_and_store(**given)


@cpu_only
@pytest.mark.parametrize("plane", [0, 1])
def test_blocks_outside_the_cache_raise(plane: int) -> None:
    given = case([4, 5], LAYOUTS[1], torch.float32)
    given["past_lengths"][:] = 0
    rows = len(given["k_cache"])
    given["offsets"][1, 0, plane, 0] = rows
    with pytest.raises(IndexError, match=rf"offsets\[1, 0, {plane}, 0\] is {rows}; expected less"):
        ops.rotate_and_store(**given)
    given["offsets"][1, 0, plane, 0] = -5  # no block
    ops.rotate_and_store(**given)


@cpu_only
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_slots_outside_the_cache_raise(dtype: torch.dtype) -> None:
    given = case([4, 8], LAYOUTS[1], torch.bfloat16) | {"offsets": None}
    buffers = [torch.zeros(10, 4, 2, 64).bfloat16() for _ in range(2)]
    given |= {"k_cache": buffers[0], "v_cache": buffers[1]}
    slots = torch.arange(12).to(dtype)
    slots[7] = 40
    with pytest.raises(IndexError, match=r"slots\[7\] is 40; expected less than 40"):
        ops.rotate_and_store(**given | {"slots": slots})
    assert not buffers[0].any()


@pytest.mark.parametrize("gap", [0, 8])
def test_many_tokens_turn_where_they_lie(gap: int) -> None:
    """Contiguous heads, and separate ones, which another kernel handles."""
    given = case([30] * 40, LAYOUTS[1], torch.bfloat16)
    apart = check(given)
    packed = torch.zeros(1200, 8, 64 + gap).bfloat16()[..., :64]
    packed.copy_(torch.cat((given["q"], given["k"], given["v"]), dim=1))
    q, k, v = packed[:, :4], packed[:, 4:6], packed[:, 6:]
    ops.rotate_and_store(**given | {"q": q, "k": k, "v": v, "q_out": q})
    assert_near(q, apart["q_out"])
    assert torch.equal(packed[:, 4:], torch.cat((given["k"], given["v"]), dim=1))
    assert_near(given["k_cache"], apart["k_cache"])


def test_tokens_after_the_last_request_are_left_alone() -> None:
    given = case([4, 8], LAYOUTS[1], torch.float32)
    given["cu_seqlens"][2] = 9
    done = check(given)
    assert not done["q_out"][9:].any()


def wrong(message: str, **changes: Any) -> Any:
    return pytest.param(changes, message, id=message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        wrong("q is int32", q=torch.zeros(3, 4, 64).int()),
        wrong(r"k is float32 \[2, 2, 64\]; expected shape \[3, 2, 64\]", k=torch.zeros(2, 2, 64)),
        wrong("q_out is float16", q_out=torch.zeros(3, 4, 64).half()),
        wrong("q_out is .*; expected shape", q_out=torch.zeros(4, 4, 64)),
        wrong("q_weight and k_weight go together", q_weight=torch.ones(64)),
        wrong("even rotary size", cos_sin=torch.zeros(64, 66)),
        wrong("positions on several axes must be given", height_pairs=3),
        wrong("three numbers for each of 3", height_pairs=3, positions=torch.zeros(3, 2).int()),
        wrong("at most 32 in all", height_pairs=30, width_pairs=3),
        wrong("cu_seqlens without past_lengths", past_lengths=None),
        wrong(
            r"offsets is .* expected shape \[1, 1, 2, 2\]", offsets=torch.zeros(1, 2, 2, 2).int()
        ),
        wrong("either offsets or slots", slots=torch.zeros(3).int()),
        wrong("k_cache and v_cache go together", v_cache=None),
        wrong("offsets or slots without a cache", k_cache=None, v_cache=None),
        wrong("k_cache is float16", k_cache=torch.zeros(4, 8, 2, 64).half()),
        wrong("k_cache .* expected shape", k_cache=torch.zeros(4, 8, 3, 64)),
        wrong("expected 4 dimensions, or 6", k_cache=torch.zeros(4, 8, 2, 8, 8)),
        wrong("64 channels in all", k_cache=torch.zeros(4, 8, 1, 2, 5, 12)),
        wrong("no gaps within a chunk", k_cache=torch.zeros(4, 8, 1, 2, 8, 16)[..., ::2]),
        wrong("scales .* expected shape", scales=torch.zeros(4, 8, 3)),
        wrong("expected 5 rows for each of 1 requests", padded_queries=5),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        ops.rotate_and_store(**case([3], LAYOUTS[1], torch.float32) | changes)
