# SPDX-License-Identifier: Apache-2.0
"""What @operator makes of a typed function."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops import declare
from rtp_llm.ops.declare import MutableTensor


def two(x: MutableTensor, y: Tensor | None = None, *, eps: float = 0.5) -> Tensor:
    """Twice x."""
    return x.new_empty(x.shape)


def test_a_call_reaches_the_operator_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    operator = SimpleNamespace(call=lambda *args: calls.append(args))
    monkeypatch.setattr(declare, "operator_of", lambda name: operator)
    function = declare.operator(two)
    x = torch.zeros(1)
    function(x)
    function(x, eps=2.0)
    function(y=x, x=x)
    assert calls == [(x, None, 0.5), (x, None, 2.0), (x, x, 0.5)]
    with pytest.raises(TypeError):
        function(x, x, 1.0)  # type: ignore[misc]


def test_what_runs_instead_is_given_the_operator_and_the_arguments_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = SimpleNamespace(call=lambda *args: args)
    monkeypatch.setattr(declare, "operator_of", lambda name: operator)

    def dispatch(operator: declare.Operator, given: dict[str, Any]) -> Any:
        return operator.call(*{**given, "eps": -given["eps"]}.values())

    function = declare.operator(dispatch=dispatch)(two)
    x = torch.zeros(1)
    assert function(x) == (x, None, -0.5)
    assert function(eps=2.0, y=x, x=x) == (x, x, -2.0)
    assert function.meta(x).shape == (1,)


def test_it_keeps_name_doc_signature_and_meta_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declare, "operator_of", lambda name: None)
    function = declare.operator(optional=True)(two)
    assert (function.__name__, function.__doc__) == ("two", "Twice x.")
    assert inspect.signature(function) == inspect.signature(two)
    x = torch.zeros(3)
    assert function.meta(x, None, 2.0).shape == (3,)
    assert function.meta(x).shape == (3,)


def test_an_operator_that_no_declaration_names_is_refused() -> None:
    with pytest.raises(KeyError, match="no operator 'two'; known: "):
        declare.operator(two)


def test_meta_function_of_an_operator_that_only_writes_in_place_is_empty() -> None:
    x = torch.zeros(2, 8, device="meta")
    assert ops.fused_add_rms_norm(x, x.clone(), torch.zeros(8, device="meta"), 1e-6) is None
    assert ops.rms_norm(x, torch.zeros(8, device="meta"), 1e-6).shape == (2, 8)
