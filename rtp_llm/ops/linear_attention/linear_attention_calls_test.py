# SPDX-License-Identifier: Apache-2.0
"""What linear attention refuses, and calls without tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.testing.operator_checks import cpu_only

BLOCKS = 40


def _call(tokens: int = 4) -> dict[str, Any]:
    """Arguments of both operators for one new sequence: 2 key heads, 4 value heads, 16 wide."""
    blocks, ring, heads, size, channels = BLOCKS, 16, 4, 16, 2 * 2 * 16 + 4 * 16
    return {
        "x": torch.randn(tokens, channels),
        "weight": torch.randn(channels, 4),
        "inputs": torch.zeros(blocks, 11, channels),
        "qkv": torch.randn(tokens, channels),
        "ba": torch.randn(tokens, 2 * heads),
        "a_log": torch.randn(heads),
        "dt_bias": torch.randn(heads),
        "state": torch.zeros(blocks, heads, size, size),
        "ring_k": torch.zeros(blocks, ring, 2, size),
        "ring_u": torch.zeros(blocks, ring, heads, size),
        "ring_g": torch.zeros(blocks, ring, heads),
        "folded": torch.zeros(blocks, heads, size // 8, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, tokens], dtype=torch.int32),
        "seq_lens": torch.tensor([tokens], dtype=torch.int32),
        "state_read": torch.tensor([-1], dtype=torch.int32),
        "state_write": torch.tensor([0], dtype=torch.int32),
        "max_seqlen_q": tokens,
        "early": False,
        "bias": None,
    }


def _run(operator: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
    names = inspect.signature(operator).parameters
    return operator(**{name: arguments[name] for name in names})


OPERATORS = (ops.causal_conv1d, ops.gated_delta_rule)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
def test_no_tokens_and_no_sequences(operator: Callable[..., Tensor]) -> None:
    arguments = _call(tokens=0)
    assert _run(operator, arguments).shape[0] == 0
    none = torch.zeros(0, dtype=torch.int32)
    arguments |= dict.fromkeys(("seq_lens", "state_read", "state_write"), none)
    arguments["cu_seqlens_q"] = torch.zeros(1, dtype=torch.int32)
    assert _run(operator, arguments).shape[0] == 0
    rows = arguments | {key: _call()[key] for key in ("x", "qkv", "ba")}
    out = _run(operator, rows)
    assert out.shape[0] == 4 and not out.any()


MISMATCHES: tuple[tuple[Callable[..., Tensor], str, Callable[[Any], Any], str], ...] = (
    (ops.causal_conv1d, "x", torch.Tensor.int, "x is int32"),
    (ops.causal_conv1d, "x", lambda x: x[None], "2 dimensions"),
    (ops.causal_conv1d, "x", lambda x: x.repeat(1, 2)[:, ::2], "gaps"),
    (ops.causal_conv1d, "weight", torch.Tensor.half, "weight is float16"),
    (ops.causal_conv1d, "weight", lambda w: w[1:], "expected shape"),
    (ops.causal_conv1d, "weight", lambda w: w.repeat(1, 2), "1 to 4 taps"),
    (ops.causal_conv1d, "inputs", torch.Tensor.half, "inputs is float16"),
    (ops.causal_conv1d, "inputs", lambda s: s[:, :3], "4 tokens at least"),
    (ops.causal_conv1d, "inputs", lambda s: s[:, :, 1:], "expected shape"),
    (ops.causal_conv1d, "inputs", lambda s: s[:, ::2], "gaps"),
    (ops.causal_conv1d, "max_seqlen_q", lambda _: -1, "longest chunk"),
    (ops.gated_delta_rule, "qkv", torch.Tensor.int, "qkv is int32"),
    (ops.gated_delta_rule, "qkv", lambda x: x[:, 1:], "expected shape"),
    (ops.gated_delta_rule, "ba", torch.Tensor.half, "ba is float16"),
    (ops.gated_delta_rule, "ba", lambda x: x[:, 1:], "expected shape"),
    (ops.gated_delta_rule, "ba", lambda x: x[1:], "expected shape"),
    (ops.gated_delta_rule, "a_log", torch.Tensor.half, "a_log is float16"),
    (ops.gated_delta_rule, "dt_bias", lambda x: x[1:], "expected shape"),
    (ops.gated_delta_rule, "state", torch.Tensor.half, "expected float32 or bfloat16"),
    (ops.gated_delta_rule, "state", lambda s: s[..., :12].contiguous(), "multiples of 8"),
    (ops.gated_delta_rule, "state", lambda s: s[:, :3].contiguous(), "multiple of key heads"),
    (ops.gated_delta_rule, "state", lambda s: s.mT.contiguous().mT, "gaps"),
    (ops.gated_delta_rule, "ring_k", lambda s: s[:, :15], "even number of rows"),
    (ops.gated_delta_rule, "ring_k", torch.Tensor.half, "ring_k is float16"),
    (ops.gated_delta_rule, "ring_u", lambda s: s[:, :14], "expected shape"),
    (ops.gated_delta_rule, "ring_g", lambda s: s[1:], "expected shape"),
    (ops.gated_delta_rule, "folded", torch.Tensor.long, "folded is int64"),
    *(
        (operator, name, change, message)
        for operator in OPERATORS
        for name, change, message in (
            ("cu_seqlens_q", lambda s: s[1:], "expected shape"),
            ("seq_lens", torch.Tensor.long, "seq_lens is int64"),
            ("state_read", lambda s: s.repeat(2), "expected shape"),
            ("state_write", lambda s: s.repeat(2), "expected shape"),
        )
    ),
)


@pytest.mark.parametrize(("operator", "name", "change", "message"), MISMATCHES)
def test_mismatches_are_refused(
    operator: Callable[..., Tensor], name: str, change: Callable[[Any], Any], message: str
) -> None:
    arguments = _call()
    arguments[name] = change(arguments[name])
    with pytest.raises(RuntimeError, match=f"{operator.__name__}: .*{message}"):
        _run(operator, arguments)


@cpu_only
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cu_seqlens_q", [1, 4], "starts with 1"),
        ("cu_seqlens_q", [0, -1], "decreases at sequence 0"),
        ("cu_seqlens_q", [0, 5], "has 5 new tokens; expected at most max_seqlen_q, 4"),
        ("seq_lens", [3], "at least its 4 new tokens"),
        ("state_read", [-2], r"state_read\[0\] is -2"),
        ("state_read", [BLOCKS], "0 <= block < 40"),
    ],
)
def test_indices_are_refused(
    operator: Callable[..., Tensor], name: str, value: list[int], message: str
) -> None:
    arguments = _call() | {name: torch.tensor(value, dtype=torch.int32)}
    with pytest.raises(RuntimeError, match=f"{operator.__name__}: .*{message}"):
        _run(operator, arguments)


@cpu_only
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
def test_more_new_tokens_than_rows_are_refused(operator: Callable[..., Tensor]) -> None:
    arguments = _call()
    arguments |= {name: arguments[name][:3] for name in ("x", "qkv", "ba")}
    with pytest.raises(RuntimeError, match="ends with 4; expected at most the 3 rows"):
        _run(operator, arguments)


@cpu_only
@pytest.mark.parametrize("folded", [5, 21])
def test_a_state_of_other_tokens_is_refused(folded: int) -> None:
    arguments = _call()
    arguments["state_read"] = arguments["state_write"]
    arguments["seq_lens"] = torch.tensor([14 + 4], dtype=torch.int32)
    arguments["folded"].fill_(folded)
    with pytest.raises(RuntimeError, match=f"reads has {folded} tokens; expected 14"):
        _run(ops.gated_delta_rule, arguments)
