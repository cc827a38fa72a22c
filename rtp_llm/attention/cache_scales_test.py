# SPDX-License-Identifier: Apache-2.0
"""Scales of keys and values in a cache of 8-bit floats: every backend that reads one uses them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import (
    AttentionBackend,
    AttentionConfig,
    Rotation,
    fp8_dequant,
)
from rtp_llm.attention.decode import DecodeBackend
from rtp_llm.attention.fp8_dequant import Fp8DequantBackend
from rtp_llm.attention.rotation import rotate_in_one_pass
from rtp_llm.attention.triton import TritonAttentionBackend
from rtp_llm.device.capabilities import HOST
from rtp_llm.ops.attention.decode_attention_reference import decode_attention_reference
from rtp_llm.ops.attention.triton_attention_reference import triton_paged_attention_reference
from rtp_llm.testing.attention.scaled_steps import cache_scales, scaled_step
from rtp_llm.testing.packages import pretend_installed

HALF, NARROW = torch.bfloat16, torch.float8_e4m3fn
CONFIG = AttentionConfig(HOST, HALF, NARROW, 4, 2, 64, 16)
SCALES = cache_scales(torch.device("cpu"))


class _Others(TritonAttentionBackend):
    @classmethod
    def kernel(cls):
        return triton_paged_attention_reference

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self._rotate = rotate_in_one_pass


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def widen_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
        out.copy_(cache.to(out.dtype)[pages.long()])

    torch.manual_seed(0)
    monkeypatch.setattr(fp8_dequant, "_ROWS_WORTH_IT", 1)
    monkeypatch.setattr(Fp8DequantBackend, "kernel", staticmethod(lambda: widen_pages))
    monkeypatch.setattr(ops, "decode_attention", decode_attention_reference)
    pretend_installed(monkeypatch, True, "triton")
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)


def backends() -> list[AttentionBackend]:
    made: list[AttentionBackend] = [_Others(CONFIG)]
    made += [kind(CONFIG, _Others(CONFIG)) for kind in (Fp8DequantBackend, DecodeBackend)]
    for each in made:
        each._rotate = rotate_in_one_pass
        each.keep_scales(0, SCALES)
    return made


@pytest.mark.parametrize("lengths", [[(30, 30), (5, 40)], [(1, 40), (1, 17)]], ids=str)
def test_keys_and_values_are_stored_and_read_with_their_scales(
    lengths: list[tuple[int, int]],
) -> None:
    for backend in backends():
        step, qkv, expected = scaled_step(lengths, CONFIG)
        actual = backend.attend(qkv.clone(), 0, 0, step, Rotation()).double()
        error = (actual - expected.flatten(1)).norm() / expected.norm()
        assert error < 0.05, (backend.name, error)


def test_layers_without_scales_store_numbers_as_they_are() -> None:
    step, qkv, expected = scaled_step([(30, 30)], CONFIG)
    backend = _Others(CONFIG)
    actual = backend.attend(qkv, 0, 0, step, Rotation()).double()
    assert (actual - expected.flatten(1)).norm() / expected.norm() > 0.5
