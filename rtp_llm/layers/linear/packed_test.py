# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose float32 weight is packed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import LayerOptions, finish_loading, make_linear, weight_targets
from rtp_llm.layers.linear.base import Linear, PlainLinear
from rtp_llm.layers.linear.packed import PackedLinear
from rtp_llm.testing.operator_checks import kernel_runs


def options(dtype: str, packs_weights: bool) -> LayerOptions:
    plain = LayerOptions(ModelSettings(dtype=dtype), torch.device("cpu"))
    return replace(plain, packs_weights=packs_weights)


def loaded(packs_weights: bool) -> Linear:
    torch.manual_seed(0)
    made = make_linear(24, {"q": 30, "k": 50}, True, options("float32", packs_weights))
    for _, target in weight_targets(made, "layer."):
        target.write(0, torch.randn(target.shape))
    finish_loading(made)
    return made


def test_a_packed_layer_computes_what_a_plain_one_does() -> None:
    plain, packed, x = loaded(False), loaded(True), torch.randn(7, 24)
    assert type(plain) is PlainLinear
    assert isinstance(packed, PackedLinear)
    with kernel_runs("packed_linear", 2):
        torch.testing.assert_close(packed(x), plain(x))
        torch.testing.assert_close(packed.gelu(x), functional.gelu(plain(x)))
    torch.testing.assert_close(plain.gelu(x), functional.gelu(plain(x)))


@pytest.mark.parametrize(("dtype", "packs"), [("bfloat16", True), ("float32", False)])
def test_other_layers_stay_plain(dtype: str, packs: bool) -> None:
    assert type(make_linear(8, {"q": 8}, False, options(dtype, packs))) is PlainLinear
