# SPDX-License-Identifier: Apache-2.0
"""Operators whose kernels are in Triton: registered as others are, launched without a detour."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops import triton
from rtp_llm.ops.attention.paged_attention_reference import paged_attention_reference
from rtp_llm.ops.attention.triton_attention_reference import triton_paged_attention_reference
from rtp_llm.ops.kv_cache.widen_pages_reference import widen_pages_reference
from rtp_llm.ops.mla.triton_mla_reference import triton_expanded_attention_reference
from rtp_llm.ops.moe.triton_moe_reference import triton_down_reference, triton_gate_up_reference
from rtp_llm.ops.schema import OPERATORS, OperatorEntry
from rtp_llm.testing.paged_batches import PagedBatch, Shape

pytestmark = pytest.mark.usefixtures("on_the_cpu")

NAMESPACE = "rtp_llm_triton_test"
ENTRY = OperatorEntry("twice(Tensor x, int n=2) -> Tensor", "soft.f", triton="soft.f:twice_kernel")
OF_TRITON = [entry for entry in OPERATORS.values() if entry.triton]


def twice_kernel(x: Tensor, n: int = 2) -> Tensor:
    CALLS.append(n)
    return x * n


CALLS: list[int] = []


@pytest.fixture(name="made", scope="module")
def _made() -> Iterator[triton.TritonOperators]:
    """As on a GPU with Triton, but that the device is the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "_FOLDER", "stand_in")
        with pytest.MonkeyPatch.context() as briefly:
            briefly.setattr(triton, "installed", lambda: True)
            made = triton.TritonOperators(NAMESPACE, [ENTRY], "cpu")
        made.define()
        torch.library.register_fake(f"{NAMESPACE}::twice", lambda x, n=2: torch.empty_like(x))
        assert "stand_in.soft.f" not in sys.modules  # which is imported when it is called
        module = ModuleType("stand_in.soft.f")
        module.twice_kernel = twice_kernel  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "stand_in", ModuleType("stand_in"))
        patch.setitem(sys.modules, "stand_in.soft", ModuleType("stand_in.soft"))
        patch.setitem(sys.modules, module.__name__, module)
        yield made


def test_the_dispatcher_finds_the_kernel(made: triton.TritonOperators) -> None:
    twice = torch.ops.rtp_llm_triton_test.twice.default
    x = torch.ones(3)
    torch.testing.assert_close(twice(x, 3), x * 3)
    torch.testing.assert_close(twice(x), x * 2)
    assert twice(x.to("meta")).shape == (3,)


def test_a_call_goes_to_the_kernel_and_what_is_traced_to_the_dispatcher(
    made: triton.TritonOperators,
) -> None:
    reached: list[object] = []

    def overload(*arguments: object) -> Tensor:
        reached.append(arguments)
        return torch.ops.rtp_llm_triton_test.twice.default(*arguments)

    call = made.direct("twice", overload)
    x = torch.ones(3)
    CALLS.clear()
    torch.testing.assert_close(call(x, 3), x * 3)
    assert (CALLS, reached) == ([3], [])
    assert call(x.to("meta"), 3).device.type == "meta"
    assert (CALLS, len(reached)) == ([3], 1)
    compiled = torch.compile(lambda x: call(x, 5), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x * 5)
    assert len(reached) == 2  # once, while it was traced


def test_others_are_called_as_ever(made: triton.TritonOperators) -> None:
    assert made.direct("rms_norm", twice_kernel) is twice_kernel


def test_without_triton_there_is_a_schema_and_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "installed", lambda: False)
    made = triton.TritonOperators(NAMESPACE + "_2", [ENTRY], "cpu")
    made.define()
    assert made.direct("twice", twice_kernel) is twice_kernel
    with pytest.raises(NotImplementedError):
        torch.ops.rtp_llm_triton_test_2.twice.default(torch.ones(3))


@pytest.mark.parametrize("entry", OF_TRITON, ids=lambda entry: entry.name)
def test_the_cpu_has_no_kernel_of_them(entry: OperatorEntry) -> None:
    assert not ops.has_kernel(entry.name, "cpu")
    assert ops.has_kernel(entry.name, "cuda") == triton.installed()
    assert entry.name not in ops.operators_without_kernel("cpu")


def test_reference_of_attention_takes_caches_of_eight_bits() -> None:
    batch = PagedBatch.random([(3, 9), (1, 20)], Shape(), torch.float32)
    q, cache, *rest = batch.arguments()
    assert torch.equal(
        triton_paged_attention_reference(q, cache, *rest, window=4),
        paged_attention_reference(q, cache, *rest, window=4),
    )
    scales = torch.tensor([0.5]), torch.tensor([2.0])
    small = (cache / torch.stack(scales).view(2, 1, 1, 1, 1)).to(torch.float8_e4m3fn)
    expected = paged_attention_reference(q, cache, *rest)
    actual = triton_paged_attention_reference(q, small, *rest, k_scale=scales[0], v_scale=scales[1])
    torch.testing.assert_close(actual, expected, rtol=0.2, atol=0.2)


def test_reference_of_expanded_attention() -> None:
    """Two sequences, the second with keys before its tokens; a row of keys between is no one's."""
    q, keys, expanded = torch.randn(4, 2, 6), torch.randn(8, 2), torch.randn(8, 2, 4 + 3)
    cu, lens = torch.tensor([0, 2, 4]).int(), torch.tensor([2, 5]).int()
    starts = torch.tensor([0, 3]).int()
    actual = triton_expanded_attention_reference(q, keys, expanded, cu, lens, starts, 3, 0.4)
    for token, (first, seen) in enumerate([(0, 1), (0, 2), (3, 4), (3, 5)]):
        rows = slice(first, first + seen)
        for head in range(2):
            own = torch.cat([expanded[rows, head, :4], keys[rows]], dim=1)
            weights = (own @ q[token, head] * 0.4).softmax(dim=0)
            torch.testing.assert_close(actual[token, head], weights @ expanded[rows, head, 4:])


def test_references_of_experts() -> None:
    x, gate_up, down = torch.randn(3, 8), torch.randn(4, 12, 8), torch.randn(4, 5, 6)
    ids = torch.tensor([[2, 0], [0, 3], [3, 2]]).int()
    rows, places, offsets = ops.sort_by_expert(ids, 4)
    gated = triton_gate_up_reference(x, gate_up, rows, offsets, 2)
    y = triton_down_reference(gated, down, rows, offsets)
    for token in range(3):
        for choice, expert in enumerate(ids[token].tolist()):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            expected = down[expert] @ (torch.nn.functional.silu(gate) * up)
            torch.testing.assert_close(y[places[token, choice]], expected)
    gated_apart = triton_gate_up_reference(x, gate_up[:3], rows, offsets, 2, gate_up[3])
    assert torch.equal(gated_apart, gated)
    assert torch.equal(triton_down_reference(gated, down[:3], rows, offsets, down[3]), y)


def test_reference_of_widened_pages() -> None:
    cache = torch.randn(5, 7).to(torch.float8_e4m3fn)
    out = torch.zeros(2, 7, dtype=torch.bfloat16)
    widen_pages_reference(cache, torch.tensor([4, 1]).int(), out)
    assert torch.equal(out, cache.to(torch.bfloat16)[[4, 1]])
