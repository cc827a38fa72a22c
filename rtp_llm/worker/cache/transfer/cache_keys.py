# SPDX-License-Identifier: Apache-2.0
"""Keys for the content of each block of a prompt, the same in every process."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_KEY_BYTES = 8


def chain_keys(
    tokens: NDArray[np.int32], block_size: int, extra_key: str = ""
) -> NDArray[np.int64]:
    """Keys int64 [ceil(len(tokens) / block_size)], each for its block and all blocks before it.

    A last block that is not full has a key too. ``extra_key`` is that of the prefix cache.
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
