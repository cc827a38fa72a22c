# SPDX-License-Identifier: Apache-2.0
"""The embedding and the resolution of tokens against their references."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.lookup.lookup_reference import embedding_reference, substitute_tokens_reference
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, cpu_only, kernel_runs


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_embedding_equals_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for tokens, rows, columns in ((1, 1, 1), (7, 13, 33), (300, 50, 512), (0, 5, 8), (3, 5, 0)):
        table = torch.randn(rows, columns + 3).to(dtype)[:, :columns]
        ids = torch.randint(0, rows, (tokens,), dtype=torch.int32)
        with kernel_runs("embedding"):
            actual = ops.embedding(ids, table)
        assert torch.equal(actual, embedding_reference(ids, table))
        assert actual.is_contiguous()


@cpu_only
@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_id_out_of_range_is_named(bad: int) -> None:
    ids = torch.tensor([0, 4, bad], dtype=torch.int32)
    with pytest.raises(IndexError, match=rf"ids\[2\] is {bad}; expected 0 <= id < 5"):
        ops.embedding(ids, torch.zeros(5, 8))
    with pytest.raises(IndexError):
        embedding_reference(ids, torch.zeros(5, 8))


def test_wrong_arguments_are_named() -> None:
    ids, table = torch.zeros(3, dtype=torch.int32), torch.zeros(5, 8)
    with pytest.raises(RuntimeError, match=r"ids is int64 \[3\]; expected int32"):
        ops.embedding(ids.long(), table)
    with pytest.raises(RuntimeError, match=r"ids is int32 \[1, 3\]; expected 1 dimensions"):
        ops.embedding(ids.unsqueeze(0), table)
    with pytest.raises(RuntimeError, match=r"table is float32 \[5\]; expected 2 dimensions"):
        ops.embedding(ids, table[:, 0].contiguous())
    with pytest.raises(RuntimeError, match=r"table is float32 .* gaps"):
        ops.embedding(ids, torch.zeros(8, 5).T)


def test_embedding_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.embedding.default,
        (torch.tensor([1, 2], dtype=torch.int32), torch.randn(5, 8)),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("rows", [1, 7, 256])
@pytest.mark.parametrize("count", [0, 1, 5, 64, 1031])
def test_negative_ids_are_rows_of_the_step_before(count: int, rows: int) -> None:
    torch.manual_seed(count + rows)
    previous = torch.randint(0, 2**31 - 1, (rows,), dtype=torch.int32)
    ids = torch.randint(-rows, 50, (count,), dtype=torch.int32)
    values = previous.tolist()
    expected = [each if each >= 0 else values[-each - 1] for each in ids.tolist()]
    with_reference = ids.clone()
    substitute_tokens_reference(with_reference, previous)
    before = previous.clone()
    with kernel_runs("substitute_tokens"):
        ops.substitute_tokens(ids, previous)
    assert ids.tolist() == expected
    assert with_reference.tolist() == expected
    assert torch.equal(previous, before)


def test_a_draft_that_is_not_there_becomes_a_token_of_the_vocabulary() -> None:
    previous = torch.tensor([9, -1, 3], dtype=torch.int32)
    for function in (ops.substitute_tokens, substitute_tokens_reference):
        ids = torch.tensor([-2, 5, -1, -3], dtype=torch.int32)
        function(ids, previous)
        assert ids.tolist() == [0, 5, 9, 3]


def test_ids_without_a_negative_one_need_no_rows() -> None:
    ids, none = torch.arange(5, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    for function in (ops.substitute_tokens, substitute_tokens_reference):
        function(ids, none)
        assert ids.tolist() == [0, 1, 2, 3, 4]


@cpu_only
@pytest.mark.parametrize("function", [ops.substitute_tokens, substitute_tokens_reference])
def test_a_row_that_the_step_before_had_not_is_named(function: object) -> None:
    assert callable(function)
    ids, previous = torch.tensor([3, -2, -4], dtype=torch.int32), torch.arange(3).int()
    with pytest.raises(IndexError):
        function(ids, previous)
    with pytest.raises(IndexError, match=r"ids\[2\] is -4; expected at least -3"):
        ops.substitute_tokens(torch.tensor([3, -2, -4], dtype=torch.int32), previous)


def test_wrong_arguments_of_the_resolution_are_named() -> None:
    ids = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"ids is int64 \[3\]; expected int32"):
        ops.substitute_tokens(ids.long(), ids)
    with pytest.raises(RuntimeError, match=r"previous is int64 \[3\]; expected int32"):
        ops.substitute_tokens(ids, ids.long())


def test_the_resolution_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.substitute_tokens.default,
        (torch.tensor([1, -1], dtype=torch.int32), torch.tensor([7], dtype=torch.int32)),
        test_utils=("test_schema", "test_faketensor"),
    )
