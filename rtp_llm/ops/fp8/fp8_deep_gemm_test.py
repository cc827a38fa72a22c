# SPDX-License-Identifier: Apache-2.0
"""When DeepGEMM multiplies, and that it is left alone where it does not work."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.fp8 import fp8_blocks, fp8_deep_gemm
from rtp_llm.testing.operator_checks import DEVICE

Pair = tuple[torch.Tensor, torch.Tensor]


class Load:
    """Stands in for the import of the library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Callable[[], object]) -> None:
        self.calls = 0
        self._outcome = outcome
        monkeypatch.setattr(fp8_deep_gemm, "_try", lambda library, device: library.probe())
        monkeypatch.setattr(importlib, "import_module", self)

    def __call__(self, name: str) -> object:
        assert name == "deep_gemm"
        self.calls += 1
        return self._outcome()


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    fp8_deep_gemm._library.cache_clear()
    yield
    fp8_deep_gemm._library.cache_clear()


def raises(error: Exception) -> Callable[[], object]:
    def outcome() -> object:
        raise error

    return outcome


def on_gpu(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(shape=shape, is_cuda=True, device="a GPU")


def test_it_multiplies_where_it_was_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(monkeypatch, lambda: SimpleNamespace(probe=lambda: None))
    weight, other = on_gpu(4096, 7168), on_gpu(4096, 7296)
    taken = {rows: fp8_deep_gemm.takes(on_gpu(rows, 7168), weight) for rows in (47, 48, 767, 768)}
    assert taken == {47: False, 48: True, 767: True, 768: False}
    assert not fp8_deep_gemm.takes(on_gpu(64, 7296), other)
    assert not fp8_deep_gemm.takes(torch.empty(64, 7168, device="cpu"), weight)
    groups, x = on_gpu(8, 4096, 7168), on_gpu(8, 128, 7168)
    masked = {rows: fp8_deep_gemm.takes_masked(x, groups, rows) for rows in (0, 64, 65, 128, 129)}
    assert masked == {0: True, 64: False, 65: True, 128: True, 129: True}  # 129: cut off at 128
    assert load.calls == 1


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (raises(ModuleNotFoundError("deep_gemm")), ""),
        (raises(OSError("undefined symbol: _ZN3c10")), "undefined symbol"),
        (lambda: SimpleNamespace(probe=raises(RuntimeError("no nvcc"))), "no nvcc"),
    ],
    ids=["not there", "another torch", "no compiler"],
)
def test_where_it_does_not_work_it_is_asked_once(
    outcome: Callable[[], object],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load = Load(monkeypatch, outcome)
    with caplog.at_level(logging.WARNING, "rtp_llm.ops"):
        for _ in range(3):
            assert not fp8_deep_gemm.takes(on_gpu(64, 7168), on_gpu(4096, 7168))
    assert load.calls == 1
    assert len(caplog.records) == (1 if words else 0) and words in caplog.text


def test_what_is_tried_has_the_layouts_that_it_takes() -> None:
    called = []

    def product(x: Pair, weight: Pair, out: torch.Tensor, *rest: object) -> None:
        """The library's own checks of scales on SM90."""
        rows, columns = weight[0].shape[-2:]
        scales = weight[1]
        assert scales.shape[-2:] == (-(-rows // 128), columns // 128)
        strides = scales.stride()[-2:]
        assert strides in ((scales.shape[-1], 1), (1, scales.shape[-2]))
        assert x[1].shape[-2:] == (x[0].shape[-2], columns // 128)
        assert out.shape[-2:] == (x[0].shape[-2], rows)
        called.append(rest)

    library = cast(
        "ModuleType", SimpleNamespace(fp8_gemm_nt=product, m_grouped_fp8_gemm_nt_masked=product)
    )
    fp8_deep_gemm._try(library, torch.device("cpu"))
    assert len(called) == 2


def test_products_where_it_is_installed() -> None:
    pytest.importorskip("deep_gemm")
    if not ops.has_kernel("fp8_linear", DEVICE):
        pytest.skip("no GPU that multiplies FP8")
    assert fp8_deep_gemm._library(torch.device(DEVICE)) is not None
    groups, rows, n, k = 8, 100, 4096, 7168
    q, scales = ops.fp8_quantize(torch.randn(groups, rows, k).to(torch.bfloat16))
    weight, weight_scales = fp8_blocks.quantize_weight(torch.randn(groups, n, k))
    counts = torch.tensor([100, 0, 1, 77, 64, 65, 99, 0], dtype=torch.int32)
    assert fp8_deep_gemm.takes_masked(q, weight, rows)
    masked = ops.fp8_grouped_masked(q, scales, weight, weight_scales, counts, rows)
    x = fp8_blocks.dequantize_rows(q, fp8_blocks.row_major(scales, rows))
    floats = fp8_blocks.dequantize_weight(weight, weight_scales)
    for group, count in enumerate(counts.tolist()):
        expected = x[group, :count] @ floats[group].T
        close(masked[group, :count], expected)
        if count == rows:
            assert fp8_deep_gemm.takes(q[group], weight[group])
            plain = ops.fp8_linear(q[group], scales[group], weight[group], weight_scales[group])
            close(plain, expected)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual.double() - expected.double()).norm()
    assert error <= 2.5e-3 * expected.double().norm()
