# SPDX-License-Identifier: Apache-2.0
"""Rope tables against transformers' own functions and the published formulas in float64."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from rtp_llm.ops.rope.rotary_table import ROPE_STYLES, RopeConfig, rope_table
from rtp_llm.testing.light_transformers import light_transformers

# Tables and transformers' own are equal to the bit on one device only.
pytestmark = pytest.mark.usefixtures("on_the_cpu")

with light_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# rope_parameters of transformers, and the same as ours; all trained on 64 positions
STYLES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.5},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0, "attention_factor": 1.25},
}
TRAINED, THETA = 64, 500.0
# Real models: Llama 3.1 8B, Qwen2.5 with yarn, a Llama 2 with linear scaling.
REAL = [
    ("llama3", 128, 5e5, 8192, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("yarn", 128, 1e6, 32768, {"factor": 4.0, "attention_factor": 0.1 * math.log(4.0) + 1.0}),
    ("linear", 80, 1e4, 4096, {"factor": 2.0}),
]


def _config(style: str, dim: int, theta: float, trained: int, own: dict[str, Any]) -> RopeConfig:
    return RopeConfig(style=style, rotary_dim=dim, theta=theta, max_position=trained, **own)


def _of_transformers(
    style: str, dim: int, theta: float, trained: int, own: dict[str, Any]
) -> LlamaRotaryEmbedding:
    parameters = {"rope_type": style, "rope_theta": theta, **own}
    if style in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = trained
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        max_position_embeddings=trained,
        rope_parameters=parameters,
    )
    return LlamaRotaryEmbedding(config)


def _row(rotary: LlamaRotaryEmbedding, position: int) -> torch.Tensor:
    """The row that transformers would use for a token decoded at `position`."""
    cos, sin = rotary(torch.zeros(1), torch.tensor([[position]]))
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, 0, :half], sin[0, 0, :half]))


@pytest.mark.parametrize(("dim", "share"), [(16, 0.25), (80, 0.25), (64, 0.3), (64, 1.0)])
def test_a_share_of_the_pairs_turns(dim: int, share: float) -> None:
    rotary = _of_transformers(
        "proportional", dim, THETA, TRAINED, {"partial_rotary_factor": share, "factor": 2.0}
    )
    config = RopeConfig("proportional", dim, THETA, factor=2.0, share=share)
    table = rope_table(config, TRAINED, "cpu")
    for position in (0, 1, 7, TRAINED - 1):
        assert torch.equal(table[position], _row(rotary, position))


@pytest.mark.parametrize("dim", [16, 64, 80])
@pytest.mark.parametrize("style", STYLES)
def test_equals_transformers_also_past_the_trained_length(style: str, dim: int) -> None:
    arguments = (style, dim, THETA, TRAINED, STYLES[style])
    table = rope_table(_config(*arguments), 5 * TRAINED, "cpu")
    rotary = _of_transformers(*arguments)
    assert table.shape == (5 * TRAINED, dim)
    assert table.dtype == torch.float32
    for position in (0, 1, 7, TRAINED - 1, TRAINED, TRAINED + 1, 2 * TRAINED, 5 * TRAINED - 1):
        # The base of "dynamic" may differ in its last bit, and angles grow with the position.
        limit = 3e-7 * position if style == "dynamic" and position >= TRAINED else 0.0
        torch.testing.assert_close(table[position], _row(rotary, position), rtol=0, atol=limit)


@pytest.mark.parametrize("arguments", REAL, ids=lambda real: real[0])
def test_equals_transformers_for_real_models(arguments: Any) -> None:
    table = rope_table(_config(*arguments), 9000, "cpu")
    positions = torch.arange(9000).unsqueeze(0)
    cos, sin = _of_transformers(*arguments)(torch.zeros(1), positions)
    half = arguments[1] // 2
    expected = torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)
    assert torch.equal(table, expected)


def _frequencies(style: str, dim: int, position: int, own: dict[str, Any]) -> list[float]:
    """The formulas as published, one number at a time in float64."""
    base, factor, length = THETA, own.get("factor", 1.0), position + 1
    if style == "dynamic" and length > TRAINED:
        base *= (factor * length / TRAINED - (factor - 1)) ** (dim / (dim - 2))
    if style == "qwen_dynamic" and length > TRAINED:
        grown = max(2 ** math.ceil(math.log2(length / TRAINED) + 1) - 1, 1)
        base *= grown ** (dim / (dim - 2))
    plain = [base ** (-2 * i / dim) for i in range(dim // 2)]
    if style == "linear":
        return [value / factor for value in plain]
    if style == "llama3":
        return [_llama3(value, factor) for value in plain]
    if style == "yarn":
        return [_yarn(i, value, dim, factor) for i, value in enumerate(plain)]
    return plain


def _llama3(value: float, factor: float) -> float:
    wavelength = 2 * math.pi / value
    if wavelength < TRAINED / 4.0:
        return value
    if wavelength > TRAINED / 1.0:
        return value / factor
    smooth = (TRAINED / wavelength - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * value / factor + smooth * value


def _yarn(index: int, value: float, dim: int, factor: float) -> float:
    def correction(rotations: float) -> float:
        return dim * math.log(TRAINED / (2 * math.pi * rotations)) / (2 * math.log(THETA))

    low = max(math.floor(correction(32.0)), 0)
    high = min(math.ceil(correction(1.0)), dim - 1)
    ramp = min(max((index - low) / (high - low), 0.0), 1.0)
    return value / factor * ramp + value * (1 - ramp)


@pytest.mark.parametrize("style", [*STYLES, "qwen_dynamic"])
def test_equals_the_formulas_in_float64(style: str) -> None:
    own, dim = STYLES.get(style, {}), 48
    table = rope_table(_config(style, dim, THETA, TRAINED, own), 400, "cpu")
    scale = own.get("attention_factor", 1.0)
    for position in (0, 1, 63, 64, 65, 127, 128, 129, 300, 399):
        angles = [position * value for value in _frequencies(style, dim, position, own)]
        expected = [math.cos(a) * scale for a in angles] + [math.sin(a) * scale for a in angles]
        actual = table[position].double()
        # Angles of float32 are off by about position * 2^-24.
        torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=0, atol=6e-5)


@pytest.mark.parametrize("style", ["dynamic", "qwen_dynamic"])
def test_row_does_not_depend_on_the_length_of_the_table(style: str) -> None:
    config = RopeConfig(style, 32, factor=2.0, max_position=TRAINED)
    long = rope_table(config, 500, "cpu")
    assert torch.equal(rope_table(config, 130, "cpu"), long[:130])
    default = rope_table(RopeConfig("default", 32), 500, "cpu")
    assert torch.equal(long[:TRAINED], default[:TRAINED])
    assert not torch.equal(long[TRAINED], default[TRAINED])


def test_every_field_and_the_length_make_another_table() -> None:
    plain = RopeConfig("yarn", 32, factor=2.0, max_position=4096)
    changes: list[dict[str, Any]] = [
        {"style": "linear"},
        {"rotary_dim": 30},
        {"theta": 1e6},
        {"factor": 3.0},
        {"max_position": 128},
        {"beta_fast": 16.0},
        {"beta_slow": 2.0},
        {"attention_factor": 1.5},
        {"extrapolation_factor": 0.5},
        {"truncate": False},
    ]
    table = rope_table(plain, 100, "cpu")
    assert rope_table(plain, 100, "cpu") is table
    assert rope_table(plain, 99, "cpu").shape == (99, 32)
    for change in changes:
        other = rope_table(RopeConfig(**{**vars(plain), **change}), 100, "cpu")
        assert other.shape != table.shape or not torch.equal(other, table), change
    for change in ({"low_freq_factor": 2.0}, {"high_freq_factor": 8.0}):
        llama = {**vars(plain), "style": "llama3", "max_position": TRAINED}
        first = rope_table(RopeConfig(**llama), 100, "cpu")
        assert not torch.equal(rope_table(RopeConfig(**{**llama, **change}), 100, "cpu"), first)


def test_table_is_freed_with_its_last_user() -> None:
    table = rope_table(RopeConfig("default", 8, theta=123.0), 10, "cpu")
    reference = weakref.ref(table)
    del table
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"style": "spiral", "rotary_dim": 8}, "rope style is 'spiral'; expected one of"),
        ({"style": "longrope", "rotary_dim": 8}, "'longrope' needs the trained length"),
        ({"style": "default", "rotary_dim": 7}, "rotary_dim is 7; expected an even number"),
        ({"style": "yarn", "rotary_dim": 8}, "'yarn' needs the trained length"),
    ],
)
def test_wrong_configurations_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeConfig(**fields)


def test_longrope_divides_by_the_list_for_the_longest_sequence() -> None:
    plain = RopeConfig("default", 4, attention_factor=1.5)
    short, long = (1.0, 3.0), (2.0, 5.0)
    config = replace(plain, style="longrope", max_position=20, divisors=short, long_divisors=long)
    for rows, divisors in ((20, short), (21, long)):
        expected = rope_table(replace(plain, divisors=divisors), rows, "cpu")
        assert torch.equal(rope_table(config, rows, "cpu"), expected)


def test_no_table_of_nothing() -> None:
    assert "none" in ROPE_STYLES
    with pytest.raises(ValueError, match="'none' has no table"):
        rope_table(RopeConfig("none", 8), 10, "cpu")
    with pytest.raises(ValueError, match="num_positions is 0"):
        rope_table(RopeConfig("default", 8), 0, "cpu")
