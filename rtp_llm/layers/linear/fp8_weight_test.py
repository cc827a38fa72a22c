# SPDX-License-Identifier: Apache-2.0
"""Which FP8 weights stay as stored on a device that multiplies them with floats alone."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.layers.linear.factory import LinearRequest, choose_kind
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_formats import Fp8Block, Fp8BlockWeights
from rtp_llm.testing.capabilities import XPU_KERNELS
from rtp_llm.testing.fake_torch import FakeTorch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels_of_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_kernel", lambda operator, kind: operator in XPU_KERNELS)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (("fp8_block", "fp8_block_weight"), "fp8_weight"),
        (("fp8_channel", "fp8_tensor", "fp8_channel_weight", "fp8_tensor_weight"), "fp8_weight"),
        (("fp8_block", "fp8_channel"), "plain"),
        (("float", "fp8_block"), "plain"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scales_of_one_kind_go_together(stored: tuple[str, ...], kind: str, dtype: str) -> None:
    options = LayerOptions(ModelSettings(dtype=dtype), CPU)
    assert choose_kind(LinearRequest(options, frozenset(stored))) == kind
    products = LayerOptions(ModelSettings(dtype=dtype), CPU, fp8_products=True)
    found = choose_kind(LinearRequest(products, frozenset({"fp8_block"})))
    assert found == ("fp8" if dtype == "bfloat16" else "fp8_weight")
    dequantized = LinearRequest(options.dequantized(), frozenset(stored))
    assert choose_kind(dequantized) == "plain"


@pytest.mark.parametrize("stored", [Fp8Block(), Fp8BlockWeights()], ids=["block", "weights"])
def test_experts_become_floats(stored: Fp8Block) -> None:
    device = XpuDevice(FakeTorch(xpu=1), {})
    assert stored.why_dequantized(torch.bfloat16, device) == ""
    assert stored.why_experts_dequantized(torch.bfloat16, device)
