# SPDX-License-Identifier: Apache-2.0
"""The embeddings of encoders against their reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.lookup.bert_embedding_reference import bert_embedding_reference
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)

ROWS, POSITIONS, TYPES, EPS = 50, 20, 2, 1e-12


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def ids(count: int, rows: int) -> Tensor:
    return torch.randint(0, rows, (count,), dtype=torch.int32)


def table(rows: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, size + 3).to(dtype)[:, :size]


def arguments(
    tokens: int, size: int, dtype: torch.dtype = torch.float32, parts: str = "pt"
) -> list[Any]:
    """`parts`: p has positions, t token types, d a table of types without ids."""
    return [
        ids(tokens, ROWS),
        ids(tokens, POSITIONS) if "p" in parts else None,
        ids(tokens, TYPES) if "t" in parts else None,
        table(ROWS, size, dtype),
        table(POSITIONS, size, dtype) if "p" in parts else None,
        table(TYPES, size, dtype) if "t" in parts or "d" in parts else None,
    ]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("parts", ["pt", "p", "t", "pd", ""])
def test_bert_embedding_equals_reference(isa: str, dtype: torch.dtype, parts: str) -> None:
    for tokens, size in ((1, 1), (7, 33), (40, 384), (0, 8), (3, 0), (2, 1500)):
        given = arguments(tokens, size, dtype, parts)
        weight, bias = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
        for norm in ((None, None), (weight, None), (weight, bias)):
            with running(isa), kernel_runs("bert_embedding"):
                actual = ops.bert_embedding(*given, *norm, EPS)
            assert actual.is_contiguous()
            if size > 1 or norm[0] is None:  # the norm of one element is noise
                assert_near(actual, bert_embedding_reference(*given, *norm, EPS))


@pytest.mark.parametrize("isa", ISAS)
def test_a_token_has_the_same_bits_in_every_batch(isa: str) -> None:
    input_ids, position_ids, token_type_ids, *tables = arguments(300, 70)
    weight = torch.randn(70)
    with running(isa):
        whole = ops.bert_embedding(input_ids, position_ids, token_type_ids, *tables, weight)
        for rows in (slice(0, 1), slice(17, 300)):
            part = [x[rows] for x in (input_ids, position_ids, token_type_ids)]
            assert torch.equal(ops.bert_embedding(*part, *tables, weight), whole[rows])


def test_sums_are_rounded_once() -> None:
    one = torch.zeros(1, dtype=torch.int32)
    words, positions, types = (torch.tensor([[x]]).bfloat16() for x in (256.0, 1.0, 1.0))
    out = ops.bert_embedding(one, one, one, words, positions, types)
    assert out.item() == 258.0  # rounded in between, 256 + 1 would have stayed 256


@cpu_only
@pytest.mark.parametrize(
    ("which", "name", "rows"),
    [(0, "input_ids", ROWS), (1, "position_ids", POSITIONS), (2, "token_type_ids", TYPES)],
)
@pytest.mark.parametrize("bad", [-1, 2**31 - 1])
def test_an_id_without_a_row_is_named(which: int, name: str, rows: int, bad: int) -> None:
    given = arguments(3, 8)
    given[which][2] = bad
    with pytest.raises(IndexError, match=rf"{name}\[2\] is {bad}; expected 0 <= id < {rows}"):
        ops.bert_embedding(*given)
    with pytest.raises(IndexError):
        bert_embedding_reference(*given)


def test_wrong_arguments_are_named() -> None:
    given = arguments(3, 8)

    def refused(message: str, **changes: Any) -> None:
        names = ("input_ids", "position_ids", "token_type_ids")
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        wrong = dict(zip((*names, *tables), given, strict=True)) | changes
        with pytest.raises(RuntimeError, match=message):
            ops.bert_embedding(**wrong)

    refused(r"input_ids is int64 \[3\]; expected int32", input_ids=given[0].long())
    refused(r"position_ids is int32 \[4\]; expected shape \[3\]", position_ids=ids(4, 3))
    refused("go together", position_ids=None)
    refused("token_type_embeddings is None", token_type_embeddings=None)
    refused(r"position_embeddings is float32 \[9, 7\]", position_embeddings=torch.zeros(9, 7))
    refused("token_type_embeddings is bfloat16", token_type_embeddings=given[5].bfloat16())
    refused(r"norm_weight is float32 \[5\]; expected shape \[8\]", norm_weight=torch.zeros(5))
    refused("norm_bias without norm_weight", norm_bias=torch.zeros(8))


def test_it_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.bert_embedding.default,
        (*arguments(3, 8), torch.randn(8), None, EPS),
        test_utils=("test_schema", "test_faketensor"),
    )
