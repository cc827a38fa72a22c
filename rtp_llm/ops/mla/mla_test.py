# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention: the cache write and attention against float64 references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.mla.mla_reference import (
    mla_attention_reference,
    mla_decode_reference,
    mla_rotate_and_store_reference,
)
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    TORCH_TYPE,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)
from rtp_llm.testing.paged_batches import PagedBatch, Shape

TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# Decode, chunk, prefill, no query, no key, more queries than a tile, parts of the keys.
MIXED = [(1, 1), (1, 17), (0, 9), (1, 0), (33, 33), (70, 90), (1, 400), (3, 300)]

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
needs_store = pytest.mark.skipif(
    not ops.has_kernel("mla_rotate_and_store", TORCH_TYPE), reason="this device has no such kernel"
)
needs_attention = pytest.mark.skipif(
    not ops.has_kernel("mla_attention", TORCH_TYPE), reason="this device has no such kernel"
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@dataclass(frozen=True)
class Write:
    """The tensors of a cache write."""

    q: Tensor
    q_out: Tensor
    kv: Tensor
    norm_weight: Tensor
    eps: float
    cos_sin: Tensor | None
    positions: Tensor
    cache: Tensor
    slots: Tensor
    is_neox: bool

    @staticmethod
    def random(
        tokens: int,
        heads: int,
        latent: int,
        rope: int,
        dtype: torch.dtype,
        is_neox: bool = False,
        gap: int = 3,
    ) -> Write:
        """Queries are the ends of heads, results the ends of others, latents slices of rows."""
        blocks, size = tokens // 4 + 2, 8
        slots = torch.randperm(blocks * size)[:tokens].int()
        slots[tokens // 2 : tokens // 2 + 1] = -1
        return Write(
            torch.randn(tokens, heads, gap + rope).to(dtype)[..., gap:],
            torch.full((tokens, heads, latent + rope), 7.0, dtype=dtype)[..., latent:],
            torch.randn(tokens, gap + latent + rope).to(dtype)[:, gap:],
            torch.rand(latent).to(dtype) + 0.5,
            1e-5,
            torch.randn(40, rope),
            torch.randint(0, 40, (tokens,), dtype=torch.int32),
            torch.full((blocks, size, latent + rope), 7.0, dtype=dtype),
            slots,
            is_neox,
        )

    def arguments(self) -> list[Any]:
        return list(vars(self).values())

    def wide(self) -> Write:
        names = ("q", "q_out", "kv", "norm_weight", "cache")
        changed: dict[str, Any] = {name: getattr(self, name).double() for name in names}
        if self.cos_sin is not None:
            changed["cos_sin"] = self.cos_sin.double()
        return replace(self, **changed)

    def check(self) -> None:
        expected = self.wide()
        mla_rotate_and_store_reference(*expected.arguments())
        with kernel_runs("mla_rotate_and_store"):
            ops.mla_rotate_and_store(*self.arguments())
        limit = TOLERANCES[self.q.dtype]
        assert_near(self.q_out.double(), expected.q_out, limit)
        assert_near(self.cache.double(), expected.cache, limit)


@needs_store
@every_isa
@every_dtype
@pytest.mark.parametrize("is_neox", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "latent", "rope", "gap"),
    [
        (5, 3, 24, 8, 0),
        (9, 1, 7, 2, 1),
        (3, 16, 512, 64, 128),
        (2, 130, 33, 18, 3),
        (1, 2, 1, 160, 8),
    ],
)
def test_norm_rotation_and_write(
    isa: str,
    dtype: torch.dtype,
    is_neox: bool,
    tokens: int,
    heads: int,
    latent: int,
    rope: int,
    gap: int,
) -> None:
    with running(isa):
        Write.random(tokens, heads, latent, rope, dtype, is_neox, gap).check()


@needs_store
@every_dtype
def test_queries_may_be_turned_in_place_and_not_at_all(dtype: torch.dtype) -> None:
    write = Write.random(6, 4, 16, 8, dtype)
    expected = write.wide()
    mla_rotate_and_store_reference(*expected.arguments())
    ops.mla_rotate_and_store(*replace(write, q_out=write.q).arguments())
    assert_near(write.q.double(), expected.q_out, TOLERANCES[dtype])
    plain = replace(Write.random(6, 4, 16, 8, dtype), cos_sin=None)
    plain.check()
    assert torch.equal(plain.q_out, plain.q)


@needs_store
def test_no_token_is_written() -> None:
    write = Write.random(0, 4, 16, 8, torch.bfloat16)
    ops.mla_rotate_and_store(*write.arguments())
    assert (write.cache == 7).all()


@cpu_only
def test_wrong_indices_and_shapes_are_refused() -> None:
    write = Write.random(4, 2, 16, 8, torch.float32)
    for changed in ({"positions": write.positions + 40}, {"slots": write.slots + 1000}):
        with pytest.raises(IndexError):
            ops.mla_rotate_and_store(*replace(write, **changed).arguments())
    for changed in (
        {"kv": write.kv[:, 1:]},
        {"norm_weight": write.norm_weight[1:]},
        {"cache": write.cache[..., 1:]},
        {"q_out": write.q_out[..., 2:]},
        {"cos_sin": torch.randn(40, 6)},
        {"slots": write.slots.long()},
    ):
        with pytest.raises(RuntimeError, match="mla_rotate_and_store"):
            ops.mla_rotate_and_store(*replace(write, **changed).arguments())


def attention_arguments(
    lengths: Sequence[tuple[int, int]],
    heads: int,
    latent: int,
    rope: int,
    dtype: torch.dtype,
    block: int = 16,
) -> list[Any]:
    """Arguments of mla_attention; queries are heads of longer ones, the rest of the cache NaN."""
    size = latent + rope
    q, planes, cu, keys, table, *most, _ = PagedBatch.random(
        lengths, Shape(heads, 1, size, block), dtype
    ).arguments()
    return [q, planes[0, :, :, 0], cu, keys, table, latent, *most, size**-0.5]


def check_attention(arguments: list[Any]) -> None:
    with kernel_runs("mla_attention"):
        actual = ops.mla_attention(*arguments)
    q, cache, *rest = arguments
    expected = mla_attention_reference(q.double(), cache.double(), *rest)
    assert actual.is_contiguous()
    assert actual.dtype == q.dtype
    assert actual.shape == (*q.shape[:2], arguments[5])
    limit = TOLERANCES[q.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@needs_attention
@every_isa
@every_dtype
@pytest.mark.parametrize(
    ("heads", "latent", "rope"), [(1, 64, 16), (4, 33, 10), (7, 20, 6), (16, 128, 32), (70, 48, 8)]
)
def test_attention(isa: str, dtype: torch.dtype, heads: int, latent: int, rope: int) -> None:
    with running(isa):
        check_attention(attention_arguments(MIXED, heads, latent, rope, dtype))


@needs_attention
@every_dtype
@pytest.mark.parametrize("block", [1, 5, 64])
def test_the_real_sizes_and_other_blocks(dtype: torch.dtype, block: int) -> None:
    check_attention(attention_arguments([(1, 130), (2, 70)], 16, 512, 64, dtype, block))


@needs_attention
def test_nothing_to_attend_to() -> None:
    assert ops.mla_attention(*attention_arguments([], 4, 16, 8, torch.float32)).shape == (0, 4, 16)


@needs_attention
def test_attention_refuses_what_does_not_fit() -> None:
    q, cache, *rest = attention_arguments([(2, 5)], 4, 16, 8, torch.float32)
    with pytest.raises(RuntimeError, match="mla_attention: cache"):
        ops.mla_attention(q, cache[..., 1:], *rest)
    rest[3] = 25
    with pytest.raises(RuntimeError, match="latent_size is 25"):
        ops.mla_attention(q, cache, *rest)


@pytest.mark.skipif(not ops.has_kernel("mla_decode", TORCH_TYPE), reason="for Hopper GPUs only")
class TestDecode:
    """Hopper's kernel for one token of each sequence."""

    # One key, no key, tiles and parts that are full or not.
    LENGTHS = (1, 17, 0, 64, 65, 1000, 333, 128, 129, 2000)

    @staticmethod
    def arguments(
        lengths: Sequence[int], heads: int, dtype: torch.dtype, block: int = 64
    ) -> list[Any]:
        q, *rest = attention_arguments(
            [(1, keys) for keys in lengths], heads, 512, 64, dtype, block
        )
        del rest[5]  # the most queries
        return [q.contiguous(), *rest]

    @staticmethod
    def check(arguments: list[Any]) -> None:
        with kernel_runs("mla_decode"):
            actual = ops.mla_decode(*arguments)
        q, cache, *rest = arguments
        expected = mla_decode_reference(q.double(), cache.double(), *rest)
        limit = TOLERANCES[q.dtype]
        torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("heads", [1, 16, 64, 70, 128])
    def test_heads(self, dtype: torch.dtype, heads: int) -> None:
        self.check(self.arguments(self.LENGTHS, heads, dtype))

    @pytest.mark.parametrize("block", [8, 16, 32, 128])
    def test_blocks(self, block: int) -> None:
        self.check(self.arguments(self.LENGTHS, 16, torch.bfloat16, block))

    @pytest.mark.parametrize("sequences", [1, 3, 200])
    def test_parts_of_the_keys(self, sequences: int) -> None:
        self.check(self.arguments([4000 - 7 * i for i in range(sequences)], 16, torch.float16))

    def test_missing_blocks_are_not_seen(self) -> None:
        q, cache, cu, keys, table, *rest = self.arguments([300, 64], 16, torch.bfloat16, 16)
        table[0, 3] = table[0, 7] = -1
        self.check([q, cache, cu, keys, table, *rest])

    def test_what_it_does_not_take_is_refused(self) -> None:
        q, cache, *rest = self.arguments([5, 6], 4, torch.bfloat16, 24)
        with pytest.raises(RuntimeError, match="blocks of 8, 16, 32"):
            ops.mla_decode(q, cache, *rest)
        with pytest.raises(RuntimeError, match="a token of each sequence"):
            ops.mla_decode(q[:1], cache, *rest)
