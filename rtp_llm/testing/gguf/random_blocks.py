# SPDX-License-Identifier: Apache-2.0
"""Random blocks of GGUF's tensor types, the same ones everywhere."""

from __future__ import annotations

import random

import numpy as np

from rtp_llm.gguf import TensorType

# The high bytes of a block's floats: a bit of them is cleared, so that none is infinite or NaN.
_HIGH_BYTES = {"F32": (3,), "Q4_1": (1, 3), "Q5_1": (1, 3), "Q4_K": (1, 3), "Q5_K": (1, 3)}
_HIGH_BYTES |= {"Q2_K": (81, 83), "Q3_K": (109,), "Q6_K": (209,), "MXFP4": (0,)}
_TOP_OF_EXPONENT = 0x40


def random_blocks(kind: TensorType, count: int, seed: int = 17) -> np.ndarray:
    """uint8 [count, bytes of a block] whose floats are finite and below 2."""
    content = random.Random(seed).randbytes(count * kind.block_bytes)
    blocks = np.frombuffer(bytearray(content), np.uint8).reshape(count, kind.block_bytes)
    for byte in _HIGH_BYTES.get(kind.name, (1,)):
        blocks[:, byte] &= ~np.uint8(_TOP_OF_EXPONENT)
    return blocks
