# SPDX-License-Identifier: Apache-2.0
"""The scan of Mamba-2 against its reference and against the recurrence over whole sequences."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.ops.linear_attention.linear_attention_reference import (
    causal_conv1d_reference,
    mamba2_scan_reference,
)
from rtp_llm.testing.linear_attention_batches import (
    RING,
    DeltaBatch,
    DeltaShape,
    copies,
)
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, ISAS, assert_near, kernel_runs, running

every_isa = pytest.mark.parametrize("isa", ISAS)
# Groups, heads, and the sizes of a head's state.
SIZES = (
    ((1, 4, 16, 8), torch.float32, torch.float32),
    ((2, 6, 24, 40), torch.bfloat16, torch.float32),
    ((3, 3, 136, 16), torch.float16, torch.bfloat16),
    ((1, 2, 512, 8), torch.float32, torch.bfloat16),
    ((2, 2, 128, 24), torch.float32, torch.float32),
)
LIMITS = 0.05, 1.5


def scan_arguments(batch: DeltaBatch) -> list[Tensor | int]:
    """A batch of the gated delta rule as one of the scan: as many channels, and a gate a head."""
    heads, states = batch.shape.heads, batch.states[1:]
    first = [batch.x, batch.ba[:, :heads], *batch.constants, torch.randn(heads)]
    return [*first, *states, *batch.indices, batch.max_seqlen_q, *LIMITS]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


@every_isa
@pytest.mark.parametrize(("sizes", "dtype", "state_dtype"), SIZES, ids=str)
def test_equals_the_reference(
    isa: str, sizes: tuple[int, ...], dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    shape = DeltaShape(*sizes, dtype, state_dtype)
    for counts in ([1, 0, 1, 7], [40, 1, 9]):
        batch = DeltaBatch.random(shape, counts)
        batch.spoil_rings()
        ours = scan_arguments(batch)
        expected = copies(ours)
        with running(isa), kernel_runs("mamba2_scan"):
            out = ops.mamba2_scan(*ours)
        assert_near(out, mamba2_scan_reference(*expected), 3e-5 if dtype.itemsize > 2 else 2e-2)
        loose = 3e-5 if state_dtype.itemsize > 2 else 2e-2
        for mine, other in zip(ours[5:9], expected[5:9], strict=True):
            assert isinstance(mine, Tensor) and isinstance(other, Tensor)
            assert torch.equal(mine.isnan(), other.isnan())
            assert_near(mine.nan_to_num(), other.nan_to_num(), loose)
        assert torch.equal(ours[9], expected[9])


def whole(
    x: Tensor, dt: Tensor, a_log: Tensor, dt_bias: Tensor, d: Tensor, g: int, n: int
) -> Tensor:
    """The recurrence over one sequence, as the paper writes it."""
    heads = len(a_log)
    values, b, c = x.float().split([x.shape[1] - 2 * g * n, g * n, g * n], dim=1)
    b, c = (each.unflatten(1, (g, n)).repeat_interleave(heads // g, 1) for each in (b, c))
    values = values.unflatten(1, (heads, -1))
    step = functional.softplus(dt.float() + dt_bias).clamp(*LIMITS)
    state, rows = torch.zeros(heads, values.shape[2], n), []
    for t, row in enumerate(values):
        decay = torch.exp(-torch.exp(a_log) * step[t])
        state = decay[:, None, None] * state + (step[t, :, None] * row)[..., None] * b[t][:, None]
        rows.append((state * c[t][:, None]).sum(-1) + d[:, None] * row)
    return torch.stack(rows)


@every_isa
def test_chunks_and_rejected_tokens_give_the_whole_sequence(isa: str) -> None:
    groups, heads, size, values = 2, 4, 24, 16
    shape = DeltaShape(groups, heads, size, values, torch.float32)
    states, length = shape.states()[1:], 90
    x, dt = torch.randn(length, shape.channels), torch.randn(length, heads)
    constants = torch.rand(heads), torch.randn(heads), torch.randn(heads)
    done, block, found = 0, -1, []
    with running(isa):
        while done < length:
            accepted = min(length - done, random.choice([1, 1, 2, 5, 8, 9, 30]))
            rejected = random.randint(0, max(0, RING // 2 - accepted))
            rows = torch.cat([x[done : done + accepted], torch.randn(rejected, shape.channels)])
            gates = torch.cat([dt[done : done + accepted], torch.randn(rejected, heads)])
            write = random.choice([block, 3, 7]) if block >= 0 else 5
            index = [[0, len(rows)], [done + len(rows)], [block], [write]]
            where = [torch.tensor(each, dtype=torch.int32) for each in index]
            out = ops.mamba2_scan(rows, gates, *constants, *states, *where, len(rows), *LIMITS)
            found.append(out[:accepted])
            done, block = done + accepted, write
    assert_near(torch.cat(found), whole(x, dt, *constants, groups, size), 3e-5)


@every_isa
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_convolution_with_a_bias(isa: str, dtype: torch.dtype) -> None:
    shape = DeltaShape(2, 4, 24, 40, dtype)
    batch = DeltaBatch.random(shape, [3, 0, 40, 1])
    bias = torch.randn(shape.channels).to(dtype)
    ours, expected = copies(batch.conv()), copies(batch.conv())
    with running(isa), kernel_runs("causal_conv1d"):
        out = ops.causal_conv1d(*ours, bias=bias)
    assert_near(out, causal_conv1d_reference(*expected, bias=bias))
    assert torch.equal(ours[2], expected[2])


def test_no_tokens_and_no_sequences() -> None:
    batch = DeltaBatch.random(DeltaShape(1, 2, 16, 8, torch.float32), [])
    assert not ops.mamba2_scan(*scan_arguments(batch)).any()  # padding alone
    none = DeltaBatch.random(DeltaShape(1, 2, 16, 8, torch.float32), [0], padding=0)
    assert ops.mamba2_scan(*scan_arguments(none)).shape == (0, 2, 8)


def test_what_does_not_fit_is_refused() -> None:
    batch = DeltaBatch.random(DeltaShape(1, 2, 16, 8, torch.float32), [3])
    arguments = scan_arguments(batch)
    with pytest.raises(RuntimeError, match=r"mamba2_scan: d is .*expected"):
        ops.mamba2_scan(*arguments[:4], torch.zeros(3), *arguments[5:])
    wide = DeltaBatch.random(DeltaShape(1, 2, 520, 8, torch.float32), [3])
    with pytest.raises(RuntimeError, match="expected rows of at most 512 elements"):
        ops.mamba2_scan(*scan_arguments(wide))
    with pytest.raises(RuntimeError, match=r"causal_conv1d: bias is .*expected"):
        ops.causal_conv1d(*batch.conv(), bias=torch.zeros(3))
