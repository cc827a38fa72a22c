# SPDX-License-Identifier: Apache-2.0
"""Weights of GGUF blocks, against the package gguf's bits and against the layouts in words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rtp_llm.gguf.types import TYPES
from rtp_llm.ops.gguf.blocks import DEQUANTIZERS, dequantize
from rtp_llm.testing.gguf.random_blocks import random_blocks

KINDS = {kind.name: kind for kind in TYPES.values()}
# Of gguf.quants.dequantize (gguf 0.19.0) for random_blocks(kind, 64): sha256, 16 digits of it.
DIGESTS = {
    "F32": "b537f6b40bc4f0da",
    "F16": "196dd6162a006a3e",
    "BF16": "2ca9723c7f508521",
    "Q4_0": "2c5f8ae109ade5be",
    "Q4_1": "d301c5050cdf7948",
    "Q5_0": "ced52877775ccbca",
    "Q5_1": "cf740b15ea396628",
    "Q8_0": "6f9dd3ebe115391c",
    "Q2_K": "db61502bb83b0063",
    "Q3_K": "742f80c398cf77fc",
    "Q4_K": "156dd3a90cff9702",
    "Q5_K": "dbd68e8afc7099dc",
    "Q6_K": "5efef936bd86afe8",
    "IQ4_NL": "1da15a7839732229",
    "IQ4_XS": "96dc5c88690e0987",
    "MXFP4": "cff56744a261cb33",
}


def half(block: bytes, at: int) -> np.float32:
    return np.float32(np.frombuffer(block, np.float16, 1, at)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def nibble(packed: bytes, number: int) -> int:
    """Of 16 bytes: numbers 0 to 15 are low nibbles, the others high ones."""
    return packed[number] & 15 if number < 16 else packed[number - 16] >> 4


def of_five_bits(high: bytes, packed: bytes, number: int) -> int:
    return nibble(packed, number) | (int.from_bytes(high, "little") >> number & 1) << 4


def scale_and_min(packed: bytes, chunk: int) -> tuple[int, int]:
    if chunk < 4:
        return packed[chunk] & 63, packed[chunk + 4] & 63
    low, high = packed[chunk + 4] & 15, packed[chunk + 4] >> 4
    return low | packed[chunk - 4] >> 6 << 4, high | packed[chunk] >> 6 << 4


def of_k(block: bytes, number: int, *, five_bits: bool) -> np.float32:
    chunk, place = divmod(number, 32)
    scale, minimum = scale_and_min(block[4:16], chunk)
    packed = block[48 if five_bits else 16 :]
    byte = packed[chunk // 2 * 32 + place]
    found = byte >> 4 if chunk % 2 else byte & 15
    if five_bits:
        found |= (block[16 + place] >> chunk & 1) << 4
    factor, offset = half(block, 0) * np.float32(scale), half(block, 2) * np.float32(minimum)
    return factor * np.float32(found) - offset


def of_q6_k(block: bytes, number: int) -> np.float32:
    part, inside = divmod(number, 128)
    chunk, place = divmod(inside, 32)
    byte = block[part * 64 + chunk % 2 * 32 + place]
    low = byte >> 4 if chunk >= 2 else byte & 15
    high = block[128 + part * 32 + place] >> 2 * chunk & 3
    factor = half(block, 208) * np.float32(signed(block[192 + number // 16]))
    return factor * np.float32((low | high << 4) - 32)


def two_bits(packed: bytes, number: int) -> int:
    """Of 64 bytes: 32 of them hold four chunks of 32 numbers, the first in the lowest bits."""
    part, inside = divmod(number, 128)
    chunk, place = divmod(inside, 32)
    return packed[part * 32 + place] >> 2 * chunk & 3


def of_q2_k(block: bytes, number: int) -> np.float32:
    scale, minimum = block[number // 16] & 15, block[number // 16] >> 4
    factor, offset = half(block, 80) * np.float32(scale), half(block, 82) * np.float32(minimum)
    return factor * np.float32(two_bits(block[16:80], number)) - offset


def of_q3_k(block: bytes, number: int) -> np.float32:
    group, packed = number // 16, block[96:108]
    scale = packed[group % 8] >> 4 * (group // 8) & 15
    scale |= (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4
    is_set = block[number % 32] >> number // 32 & 1
    found = two_bits(block[32:96], number) - (0 if is_set else 4)
    return half(block, 108) * np.float32(scale - 32) * np.float32(found)


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


def of_iq4_xs(block: bytes, number: int) -> np.float32:
    chunk, place = divmod(number, 32)
    scale = block[4 + chunk // 2] >> 4 * (chunk % 2) & 15
    scale |= (int.from_bytes(block[2:4], "little") >> 2 * chunk & 3) << 4
    found = IQ4[nibble(block[8 + 16 * chunk : 24 + 16 * chunk], place)]
    return half(block, 0) * np.float32(scale - 32) * np.float32(found)


IN_WORDS: dict[str, Callable[[bytes, int], np.float32]] = {
    "Q4_0": lambda b, i: half(b, 0) * np.float32(nibble(b[2:], i) - 8),
    "Q4_1": lambda b, i: half(b, 0) * np.float32(nibble(b[4:], i)) + half(b, 2),
    "Q5_0": lambda b, i: half(b, 0) * np.float32(of_five_bits(b[2:6], b[6:], i) - 16),
    "Q5_1": lambda b, i: half(b, 0) * np.float32(of_five_bits(b[4:8], b[8:], i)) + half(b, 2),
    "Q8_0": lambda b, i: half(b, 0) * np.float32(signed(b[2 + i])),
    "Q4_K": lambda b, i: of_k(b, i, five_bits=False),
    "Q5_K": lambda b, i: of_k(b, i, five_bits=True),
    "Q6_K": of_q6_k,
    "Q2_K": of_q2_k,
    "Q3_K": of_q3_k,
    "IQ4_NL": lambda b, i: half(b, 0) * np.float32(IQ4[nibble(b[2:], i)]),
    "IQ4_XS": of_iq4_xs,
    "MXFP4": lambda b, i: np.float32(FP4[nibble(b[1:], i)] * 2.0 ** (b[0] - 127)),
}


def test_every_type_that_is_not_refused_has_a_dequantizer():
    assert set(DEQUANTIZERS) == {kind.name for kind in TYPES.values() if not kind.why_refused}
    assert set(DIGESTS) == set(DEQUANTIZERS)


@pytest.mark.parametrize("name", DIGESTS)
def test_weights_have_the_bits_of_the_package(name):
    weights = dequantize(name, torch.from_numpy(random_blocks(KINDS[name], 64)))
    assert weights.shape == (64, KINDS[name].elements)
    assert hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", IN_WORDS)
def test_weights_follow_the_layout(name):
    blocks = random_blocks(KINDS[name], 3, seed=5)
    weights = dequantize(name, torch.from_numpy(blocks)).numpy()
    for block, found in zip(blocks, weights, strict=True):
        expected = [IN_WORDS[name](block.tobytes(), i) for i in range(KINDS[name].elements)]
        np.testing.assert_array_equal(found, np.array(expected, np.float32))


@pytest.mark.parametrize("name", DIGESTS)
def test_blocks_may_lie_apart_and_have_any_outer_axes(name):
    kind = KINDS[name]
    blocks = torch.from_numpy(random_blocks(kind, 24))
    whole = dequantize(name, blocks)
    rows = dequantize(name, blocks.view(2, 4, 3, kind.block_bytes).transpose(0, 1))
    assert torch.equal(rows, whole.view(2, 4, 3, kind.elements).transpose(0, 1))
    assert dequantize(name, blocks[:0]).shape == (0, kind.elements)


@pytest.mark.parametrize("name", IN_WORDS)
def test_blocks_of_another_size_are_refused(name):
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        dequantize(name, torch.zeros(2, KINDS[name].block_bytes + 1, dtype=torch.uint8))
