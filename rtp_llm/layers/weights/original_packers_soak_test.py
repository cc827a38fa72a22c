# SPDX-License-Identifier: Apache-2.0
"""Weights that gptqmodel, autoawq and auto-round pack themselves equal what they dequantise to.

They are no dependencies: pip install gptqmodel autoawq auto-round in an environment of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import LayerOptions, make_linear, weight_targets
from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups
from rtp_llm.layers.weights.targets import loads_last, rows_together

ROWS, COLUMNS, GROUP = 64, 128, 32


def quantized(bits: int, ordered: bool) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A layer, its scales and zero points [rows, groups], and the group of each column."""
    torch.manual_seed(bits)
    linear = nn.Linear(COLUMNS, ROWS, bias=False).half()
    group_of = torch.arange(COLUMNS) // GROUP
    if ordered:
        group_of = group_of[torch.randperm(COLUMNS)]
    top = (1 << bits) - 1
    weight = linear.weight.data.float()
    groups = [weight[:, group_of == number] for number in range(COLUMNS // GROUP)]
    low, high = (
        torch.stack([reduce(each, 1) for each in groups], 1) for reduce in (torch.amin, torch.amax)
    )
    scales = ((high - low) / top).half()
    zeros = (-low / scales.float()).round().clamp(1, top)
    return linear, scales, zeros, group_of.int()


def loaded(stored: IntGroups, tensors: dict[str, Tensor]) -> Tensor:
    """The weight as this project dequantises it."""
    options = LayerOptions(
        ModelSettings(dtype="float16"), torch.device("cpu"), formats={"q": stored}
    )
    outer = nn.Module()
    outer.layer = make_linear(COLUMNS, {"q": ROWS}, False, options.dequantized())
    targets = {name.removeprefix("q."): each for name, each in weight_targets(outer)}
    for last in (False, True):
        for name, target in targets.items():
            if loads_last([target]) is last:
                assert target.shape == tuple(tensors[name].shape), name
                step = 3 * rows_together([target])
                for start in range(0, len(tensors[name]), step):
                    target.write(start, tensors[name][start : start + step])
    weight: Tensor = outer.layer.weight
    return weight


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptqmodel(bits: int, ordered: bool) -> None:
    found: Any = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch")
    linear, scales, zeros, group_of = quantized(bits, ordered)
    layer = found.TorchLinear(
        bits=bits,
        group_size=GROUP,
        sym=False,
        desc_act=ordered,
        in_features=COLUMNS,
        out_features=ROWS,
    )
    layer.pack_original(linear, scales.clone(), zeros.clone(), group_of)
    layer.eval()
    tensors = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    # In memory the package has version 2: zero points as they are.
    stored = Gptq(bits=bits, group=GROUP, ordered=ordered, zero_added=0)
    assert torch.equal(loaded(stored, tensors), layer.dequantize_weight().T)


def test_autoawq() -> None:
    found: Any = pytest.importorskip("awq.modules.linear.gemm")
    packing: Any = pytest.importorskip("awq.utils.packing_utils")
    linear, scales, zeros, _ = quantized(4, ordered=False)
    layer = found.WQLinear_GEMM.from_linear(
        linear, 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.T.contiguous().half()
    )
    tensors = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    exact = packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, GROUP)
    assert torch.equal(loaded(Awq(group=GROUP), tensors), exact.T)


@pytest.mark.parametrize("added", [0, 1])
@pytest.mark.parametrize("bits", [4, 8])
def test_auto_round(bits: int, added: int) -> None:
    """Its files have zero points as they are, and as GPTQ's version 1 has them."""
    name = "qlinear_torch_zp" if added else "qlinear_torch"
    found: Any = pytest.importorskip(f"auto_round_extension.torch.{name}")
    linear, scales, zeros, _ = quantized(bits, ordered=False)
    layer = found.QuantLinear(bits, GROUP, COLUMNS, ROWS, False)
    layer.device = torch.device("cpu")
    layer.pack(linear, scales.clone(), zeros.clone(), None, device="cpu")
    tensors = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    layer.post_init()

    exact = layer(torch.eye(COLUMNS, dtype=torch.float16))
    stored = Gptq(bits=bits, group=GROUP, zero_added=added, indexed=False)
    assert torch.equal(loaded(stored, tensors), exact.T)
