# SPDX-License-Identifier: Apache-2.0
"""Tests of choosing an attention backend and of the explanation."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest
import torch

from rtp_llm import ops
from rtp_llm.attention import (
    AttentionBackend,
    AttentionConfig,
    explain,
    factory,
    make_backend,
)
from rtp_llm.attention.flashinfer import FlashInferBackend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.settings import Settings
from rtp_llm.device import Support
from rtp_llm.device.capabilities import HOST
from rtp_llm.device.choice import NoChoiceError
from rtp_llm.testing.capabilities import AMPERE, BLACKWELL, HOPPER, ROCM, XPU
from rtp_llm.testing.packages import pretend_installed

PACKAGES = ("triton", "flashinfer_jit_cache")
CONFIG = AttentionConfig(HOST, torch.float32, torch.float32, 4, 2, 64, 16)


class _Fast(AttentionBackend):
    name, priority = "fast", 10

    @classmethod
    def supports(cls, config):
        if config.head_dim == 64:
            return Support.yes()
        return Support.no("only heads of 64")

    def forward(self, q, layer, window, batch):
        return q


class _Slow(_Fast):
    name, priority = "slow", 5


@pytest.fixture
def three_backends(monkeypatch):
    table = {"slow": _Slow, "fast": _Fast, "paged": factory._load(factory._BACKENDS[0])}
    monkeypatch.setattr(factory, "_BACKENDS", tuple(table))
    monkeypatch.setattr(factory, "_load", table.__getitem__)


@pytest.mark.parametrize("device", [HOST, ROCM, XPU], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_native_backend_serves_every_device_and_type(device, dtype):
    config = dataclasses.replace(CONFIG, capabilities=device, dtype=dtype, kv_dtype=dtype)
    backend = make_backend(config)
    assert backend.name == "paged"
    assert backend.scale == 0.125


@pytest.mark.parametrize(
    ("installed", "change", "chosen", "reason"),
    [
        (True, {}, "triton", "chosen"),
        (True, {"dtype": torch.float32, "kv_dtype": torch.float32}, "paged", "tensor cores"),
        (True, {"capabilities": ROCM}, "paged", "for other devices"),
        (False, {}, "paged", "not installed"),
    ],
)
def test_triton_serves_nvidia_gpus(monkeypatch, installed, change, chosen, reason):
    pretend_installed(monkeypatch, installed, *PACKAGES)
    half = {"capabilities": AMPERE, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
    lines = explain(dataclasses.replace(CONFIG, **{**half, **change})).splitlines()
    assert [line.split()[0] for line in lines if line.endswith(": chosen")] == [chosen]
    assert reason in next(line for line in lines if line.startswith("  triton"))


@pytest.mark.parametrize(
    ("device", "chosen"),
    [
        (HOST, "paged"),
        (ROCM, "paged"),
        (XPU, "paged"),
        (HOPPER, "cuda_sm90"),
        (AMPERE, "triton"),
    ],
)
def test_heads_of_qwen3_next_are_served_everywhere(monkeypatch, device, chosen):
    pretend_installed(monkeypatch, True, *PACKAGES)
    half = torch.bfloat16
    config = AttentionConfig(device, half, half, 16, 2, 256, 16)
    lines = explain(config).splitlines()
    assert [line.split()[0] for line in lines if line.endswith(": chosen")] == [chosen]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"block_size": 128, "dtype": torch.float16, "kv_dtype": torch.float16}, ""),
        ({"capabilities": AMPERE}, "written for wgmma"),
        ({"capabilities": BLACKWELL}, "written for wgmma"),
        ({"head_dim": 256}, ""),
        ({"head_dim": 80}, "heads of 80"),
        ({"block_size": 48}, "blocks of 48"),
        ({"block_size": 4}, "blocks of 4"),
        ({"num_heads": 512}, "256 heads share keys"),
        ({"kv_dtype": torch.float8_e4m3fn}, "must have the type of the queries"),
        ({"dtype": torch.float32, "kv_dtype": torch.float32}, "tensor cores"),
    ],
)
def test_hopper_gpus_have_a_backend_for_prompts(monkeypatch, change, reason):
    pretend_installed(monkeypatch, False, *PACKAGES)
    half = {"capabilities": HOPPER, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
    config = dataclasses.replace(CONFIG, **{**half, **change})
    line = next(line for line in explain(config).splitlines() if line.startswith("  cuda_sm90"))
    assert line.endswith(": chosen") if not reason else reason in line


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"capabilities": HOPPER}, ""),
        ({"capabilities": AMPERE}, "triton: a KV cache of 8-bit .* needs FP8 conversion"),
        ({"capabilities": HOST}, "paged: the KV cache must have the type of the queries"),
    ],
)
def test_a_cache_of_eight_bits(monkeypatch, change, reason):
    pretend_installed(monkeypatch, True, *PACKAGES)
    small = {"capabilities": HOPPER, "dtype": torch.bfloat16, "kv_dtype": torch.float8_e4m3fn}
    config = dataclasses.replace(CONFIG, **{**small, **change})
    if not reason:
        assert next(line for line in explain(config).splitlines() if "chosen" in line)
        return
    with pytest.raises(NoChoiceError, match=reason):
        make_backend(config)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "chosen for steps of one token"),
        ({"capabilities": ROCM}, "mma and cp.async"),
        ({"dtype": torch.float32, "kv_dtype": torch.float32}, "tensor cores"),
        ({"head_dim": 80}, "2 heads of 80 share keys; it has 64 in groups up to 16"),
        ({"num_heads": 16, "num_kv_heads": 2, "head_dim": 256}, "chosen for steps of one token"),
        ({"num_heads": 18, "num_kv_heads": 2, "head_dim": 256}, "9 heads of 256 share keys"),
        ({"block_size": 4}, "blocks of 4; it takes powers of two from 8 on"),
        ({"causal": False}, "one token sees no later ones"),
        ({"sinks": True}, "it has no attention sinks"),
    ],
)
def test_decode_steps_go_to_one_kernel_where_it_can(monkeypatch, change, reason):
    pretend_installed(monkeypatch, False, *PACKAGES)
    monkeypatch.setattr(ops, "has_kernel", lambda name, device_type: True)
    half = {"capabilities": HOPPER, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
    config = dataclasses.replace(CONFIG, **{**half, **change})
    assert reason in explain(config).splitlines()[-1]
    assert (make_backend(config).name == "decode") == reason.startswith("chosen")
    monkeypatch.setattr(ops, "has_kernel", lambda name, device_type: False)
    assert make_backend(config).name != "decode"


# What backends take besides windows and other scales, which all do; the tests of their operators
# compare results. Everything else is refused, so that no backend leaves it out of its sums.
TAKEN = {
    "paged": {"soft_cap", "sinks", "causal"},
    "triton": {"soft_cap", "sinks", "causal"},
    "cuda_sm90": {"soft_cap", "sinks", "causal"},
    "fp8_dequant": {"soft_cap", "sinks"},
    "flashinfer": set(),
    "decode": {"soft_cap"},
}
UNUSUAL = {"soft_cap": 50.0, "sinks": True, "causal": False}


def test_what_changes_scores_is_taken_or_refused_by_every_backend(monkeypatch):
    pretend_installed(monkeypatch, True, *PACKAGES)
    monkeypatch.setattr("rtp_llm.attention.flashinfer._installed", lambda env: Support.yes())
    monkeypatch.setattr(ops, "has_kernel", lambda name, device_type: True)
    backends = {each.name: each for each in factory._family(CONFIG)} | {"decode": factory._decode()}
    assert backends.keys() == TAKEN.keys()
    half = {"capabilities": HOPPER, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
    for name, backend in backends.items():
        narrow = {"kv_dtype": torch.float8_e4m3fn} if name == "fp8_dequant" else {}
        config = dataclasses.replace(CONFIG, **{**half, **narrow})
        assert backend.supports(config)
        changed = {key: dataclasses.replace(config, **{key: each}) for key, each in UNUSUAL.items()}
        assert {key for key, each in changed.items() if backend.supports(each)} == TAKEN[name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "no kernel for torch.float64"),
        ({"kv_dtype": torch.int8}, "KV cache must have the type of the queries"),
        ({"capabilities": HOPPER, "head_dim": 576}, "for cuda takes heads of at most 512"),
        ({"capabilities": XPU, "head_dim": 320}, "for xpu takes heads of at most 256"),
    ],
)
def test_what_is_not_supported_is_an_error_with_the_reason(change, reason):
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(NoChoiceError, match=reason):
        make_backend(config)
    assert reason in explain(config)


def test_the_highest_priority_that_says_yes_is_taken(three_backends):
    assert make_backend(CONFIG).name == "fast"
    assert make_backend(dataclasses.replace(CONFIG, head_dim=80)).name == "paged"


def test_the_explanation_names_every_backend(three_backends):
    assert explain(CONFIG).splitlines() == [
        "attention for cpu, float32, 4 heads over 2 KV heads of 64, blocks of 16, full:",
        "  fast (priority 10): chosen",
        "  slow (priority 5): supported, lower priority",
        "  paged (priority 0): supported, lower priority",
        "  decode (with any of them): no: it needs the mma and cp.async instructions of Ampere "
        "GPUs or newer",
    ]
    config = dataclasses.replace(CONFIG, head_dim=80, windows=(0, 32))
    text = explain(config)
    assert "fast (priority 10): no: only heads of 64" in text
    assert "paged (priority 0): chosen" in text
    assert text.splitlines()[0].endswith("window 32, and full:")


def test_one_can_be_requested(three_backends):
    config = dataclasses.replace(CONFIG, settings=SimpleNamespace(attention_backend="slow"))
    assert make_backend(config).name == "slow"
    lines = explain(config).splitlines()
    assert lines[1:3] == [
        "  fast (priority 10): supported",
        "  slow (priority 5): chosen by --attention-backend",
    ]
    with pytest.raises(NoChoiceError, match="--attention-backend slow: only heads of 64"):
        make_backend(dataclasses.replace(config, head_dim=80))
    with pytest.raises(NoChoiceError, match="quick is unknown; there are auto, fast, slow, paged"):
        make_backend(
            dataclasses.replace(CONFIG, settings=SimpleNamespace(attention_backend="quick"))
        )


def test_a_requested_one_takes_decode_steps_too(monkeypatch):
    monkeypatch.setattr(ops, "has_kernel", lambda name, device_type: True)
    half = {"capabilities": HOPPER, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
    config = dataclasses.replace(CONFIG, **half, settings=ModelSettings(attention_backend="paged"))
    assert make_backend(config).name == "paged"
    assert explain(config).endswith("no: --attention-backend gives every step to paged")
    monkeypatch.setattr(FlashInferBackend, "supports", lambda config: Support.yes())
    monkeypatch.setitem(sys.modules, "flashinfer", object())
    config = dataclasses.replace(config, settings=ModelSettings(attention_backend="flashinfer"))
    backend = make_backend(config)
    assert (backend.name, backend.others.name) == ("flashinfer", "decode")
    assert "chosen for decode steps in graphs" in explain(config)


def test_the_setting_has_every_name():
    names = {factory._load(place).name for place in factory._BACKENDS}
    choices = next(f for f in dataclasses.fields(Settings) if f.name == "attention_backend")
    assert set(choices.metadata["option"].choices) == {"auto", *names}


def test_the_error_lists_every_backends_reason(three_backends):
    with pytest.raises(NoChoiceError, match=r"fast: only heads of 64; slow: .*; paged: the KV"):
        make_backend(dataclasses.replace(CONFIG, head_dim=80, kv_dtype=torch.int8))
