# SPDX-License-Identifier: Apache-2.0
"""A name for the content of each block of a prompt, the same in every process."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_KEY_BYTES = 8


def chain_keys(
    tokens: NDArray[np.int32], block_size: int, extra_key: str = ""
) -> NDArray[np.int64]:
    """int64 [ceil(len(tokens) / block_size)]: each stands for its block and all that is before it.

    The last block has one too where it is not full. ``extra_key`` is the prefix cache's.
    """
    data = memoryview(tokens.astype(np.int32).tobytes())
    step = 4 * block_size
    parent = hashlib.blake2b(extra_key.encode(), digest_size=_KEY_BYTES).digest()
    keys = bytearray()
    for start in range(0, len(data), step):
        digest = hashlib.blake2b(parent, digest_size=_KEY_BYTES)
        digest.update(data[start : start + step])
        parent = digest.digest()
        keys += parent
    return np.frombuffer(bytes(keys), np.int64)
