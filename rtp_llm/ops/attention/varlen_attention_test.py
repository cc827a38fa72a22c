# SPDX-License-Identifier: Apache-2.0
"""The attention of encoders against its reference in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.ops.attention.varlen_attention_reference import varlen_attention_reference
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, ISAS, cpu_only, kernel_runs, running

# Weights of bfloat16 are rounded before they meet the values, as the values are.
TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# Single tokens, few rows, whole and odd tiles, none, several tiles.
MIXED = [1, 7, 64, 0, 65, 16, 140, 1]

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@dataclass(frozen=True)
class Texts:
    """Sequences of a batch, as views of one projection."""

    qkv: Tensor  # [T, H + 2 Hk, D]
    heads: tuple[int, int]
    lengths: list[int]
    window: int = 0
    bias: Tensor | None = None  # [H, 2 L - 1]

    @classmethod
    def random(
        cls,
        lengths: list[int],
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 32,
        dtype: torch.dtype = torch.float32,
        window: int = 0,
    ) -> Texts:
        qkv = torch.randn(sum(lengths), heads[0] + 2 * heads[1], head_dim).to(dtype)
        return cls(qkv, heads, lengths, window)

    def arguments(self) -> tuple[Any, ...]:
        query, key, value = self.qkv.split((self.heads[0], self.heads[1], self.heads[1]), dim=1)
        starts = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32)
        scale = self.qkv.shape[2] ** -0.5
        longest = max(self.lengths, default=0)
        return query, key, value, starts, longest, scale, self.window, self.bias

    def run(self) -> Tensor:
        return ops.varlen_attention(*self.arguments())

    def expected(self) -> Tensor:
        return varlen_attention_reference(*replace(self, qkv=self.qkv.double()).arguments())

    def biased(self, spare: int = 0) -> Texts:
        """With a bias for as many tokens as the longest sequence has, and some more."""
        distances = 2 * (max(self.lengths) + spare) - 1
        return replace(self, bias=3 * torch.randn(self.heads[0], distances))

    def alone(self, index: int) -> Texts:
        first = sum(self.lengths[:index])
        rows = self.qkv[first : first + self.lengths[index]]
        return replace(self, qkv=rows, lengths=[self.lengths[index]])


def assert_right(texts: Texts) -> None:
    with kernel_runs("varlen_attention"):
        actual = texts.run()
    assert actual.dtype == texts.qkv.dtype
    assert actual.is_contiguous()
    limit = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), texts.expected(), rtol=limit, atol=limit)


@every_isa
@every_dtype
@pytest.mark.parametrize("window", [0, 1, 40, 139, 2**31])
def test_windows(isa: str, dtype: torch.dtype, window: int) -> None:
    with running(isa):
        assert_right(Texts.random(MIXED, (2, 1), dtype=dtype, window=window))


@every_isa
@every_dtype
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 128, 256])
def test_head_sizes(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    with running(isa):
        assert_right(Texts.random([1, 7, 65], (3, 1), head_dim, dtype))


@every_isa
@every_dtype
@pytest.mark.parametrize(("heads", "head_dim"), [((4, 4), 32), ((3, 1), 64), ((2, 2), 80)])
@pytest.mark.parametrize(("window", "spare"), [(0, 0), (40, 9)])
def test_bias(
    isa: str, dtype: torch.dtype, heads: tuple[int, int], head_dim: int, window: int, spare: int
) -> None:
    with running(isa):
        assert_right(Texts.random(MIXED, heads, head_dim, dtype, window).biased(spare))


@every_isa
@pytest.mark.parametrize("heads", [(1, 1), (12, 12), (9, 3), (70, 1)])
def test_groups_of_heads(isa: str, heads: tuple[int, int]) -> None:
    with running(isa):
        assert_right(Texts.random([33, 1, 70], heads, window=20))


@every_isa
@every_dtype
@pytest.mark.parametrize(("head_dim", "window"), [(32, 0), (64, 50)])
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(
    isa: str, dtype: torch.dtype, head_dim: int, window: int
) -> None:
    texts = Texts.random([1, 256, 7, 300, 0, 65], (2, 2), head_dim, dtype, window)
    with running(isa):
        together = texts.run().split(texts.lengths)
        for index, rows in enumerate(together):
            assert torch.equal(texts.alone(index).run(), rows)


@cpu_only
def test_threads_do_not_change_the_bits() -> None:
    texts = Texts.random(MIXED)
    expected, threads = texts.run(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(texts.run(), expected)
    finally:
        torch.set_num_threads(threads)


def test_tokens_after_the_last_sequence_become_zero() -> None:
    texts = Texts.random([5, 20])
    query, key, value, starts, *rest = replace(texts, lengths=[25]).arguments()
    starts = torch.tensor([0, 5, 12, 12, 12], dtype=torch.int32)
    out = ops.varlen_attention(query, key, value, starts, *rest)
    assert torch.equal(out[12:], torch.zeros(13, 4, 32))
    assert torch.equal(out[:5], texts.alone(0).run())


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_no_tokens(lengths: list[int]) -> None:
    assert Texts.random(lengths).run().shape == (0, 4, 32)


@every_isa
def test_nan_stays_in_its_sequence(isa: str) -> None:
    texts = Texts.random([40, 3, 130])
    clean = texts.run()
    texts.qkv[40:43] = torch.nan
    with running(isa):
        out = texts.run()
    assert out[40:43].isnan().all()
    assert not out[:40].isnan().any()
    torch.testing.assert_close(out[43:], clean[43:])


def test_reference_equals_torch() -> None:
    texts = Texts.random([50], (4, 4))
    query, key, value = (x.transpose(0, 1) for x in texts.arguments()[:3])
    expected = functional.scaled_dot_product_attention(query, key, value).transpose(0, 1)
    actual = varlen_attention_reference(*texts.arguments())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_it_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.varlen_attention.default,
        Texts.random([3, 2]).arguments(),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_wrong_arguments_are_named() -> None:
    query, key, value, starts, *rest = Texts.random([3, 2]).arguments()
    for head_dim in (8, 20, 264):
        odd = torch.zeros(5, 2, head_dim)
        with pytest.raises(RuntimeError, match="multiple of 8 from 16 to 256"):
            ops.varlen_attention(odd, odd, odd, starts, *rest)
    with pytest.raises(RuntimeError, match=r"key is float32 \[4, 2, 32\] and query"):
        ops.varlen_attention(query, key[:4], value, starts, *rest)
    with pytest.raises(RuntimeError, match=r"key is float32 \[5, 3, 32\] and query"):
        ops.varlen_attention(query, torch.zeros(5, 3, 32), value, starts, *rest)
    with pytest.raises(RuntimeError, match="key is bfloat16"):
        ops.varlen_attention(query, key.bfloat16(), value, starts, *rest)
    with pytest.raises(RuntimeError, match=r"value .* with other strides than key"):
        ops.varlen_attention(query, key, value.contiguous(), starts, *rest)
    with pytest.raises(RuntimeError, match=r"cu_seqlens is int64 \[3\]; expected int32"):
        ops.varlen_attention(query, key, value, starts.long(), *rest)
    for bias in (torch.zeros(4, 4), torch.zeros(4, 3), torch.zeros(2, 5)):
        with pytest.raises(RuntimeError, match=r"bias is .* expected \[4, 2 L - 1\]"):
            ops.varlen_attention(query, key, value, starts, *rest[:3], bias)
    with pytest.raises(RuntimeError, match="bias is bfloat16"):
        ops.varlen_attention(query, key, value, starts, *rest[:3], torch.zeros(4, 5).bfloat16())
    with pytest.raises(RuntimeError, match="window is -1"):
        ops.varlen_attention(query, key, value, starts, *rest[:2], -1)


@cpu_only
@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([1, 3, 5], "starts with 1"),
        ([0, 3, 2], "sequence 1 -1 tokens"),
        ([0, 4, 5], "sequence 0 4 tokens; expected 0 to max_seqlen, 3"),
        ([0, 3, 6], "ends with 6, but query has 5"),
    ],
)
def test_wrong_lengths_are_named(starts: list[int], message: str) -> None:
    query, key, value, _, *rest = Texts.random([3, 2]).arguments()
    with pytest.raises(RuntimeError, match=message):
        ops.varlen_attention(query, key, value, torch.tensor(starts, dtype=torch.int32), *rest)
