# SPDX-License-Identifier: Apache-2.0
"""Changes bytes of GGUF headers at random and reads the results."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from pathlib import Path

from rtp_llm.gguf import GgufError, describe, open_model
from rtp_llm.testing.gguf.writer import Tensor, packed

# Python's objects for an entry of the tables take more than the entry.
_MEMORY_PER_BYTE, _BUFFERS = 40, 2**20
_LONGEST_MESSAGE = 600
_NUMBERS = (0, 1, 2, 7, 8, 9, 13, 255, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def whole_file() -> bytes:
    """A small file with everything that files have."""
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "split.count": 1,
        "llama.block_count": 2,
        "llama.rope.freq_base": 1e6,
        "tokenizer.ggml.tokens": [f"token{number}" for number in range(20)],
        "tokenizer.ggml.scores": [-0.5] * 20,
        "tokenizer.ggml.add_bos_token": True,
        "flags": [True, False],
    }
    kinds = {"F32": (8,), "Q4_K": (2, 256), "Q8_0": (2, 2, 32), "Q5_0": (1, 64)}
    tensors = {f"blk.0.{kind}.weight": Tensor(kind, shape) for kind, shape in kinds.items()}
    return packed(metadata, tensors)


def mutated(content: bytes, header: int, draw: random.Random) -> bytes:
    """`content` with one to three places of its first `header` bytes changed."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.randrange(min(header, len(made)) or 1)
        what = draw.random()
        if what < 0.4:
            size = draw.choice((4, 8))
            made[at : at + size] = struct.pack("<Q", draw.choice(_NUMBERS))[:size]
        elif what < 0.7:
            made[at : at + 1] = bytes([draw.randrange(256)])
        elif what < 0.8:
            made[at : at + draw.choice((1, 4, 8))] = b""
        elif what < 0.9:
            made[at:at] = draw.randbytes(draw.choice((1, 4, 8)))
        else:
            del made[draw.randrange(len(made)) :]
    return bytes(made)


def read_mutated(folder: Path, count: int, seed: int) -> Counter[bool]:
    """Read `count` changed files and return how many were accepted and refused.

    Asserts that nothing but GgufError is raised, that accepted tensors lie in the file, and that
    reading takes no more memory than a small multiple of the file.
    """
    whole, draw, verdicts = whole_file(), random.Random(seed), Counter[bool]()
    header = whole.index(b"blk.0.Q5_0") + 64
    file = folder / "mutated.gguf"
    tracemalloc.start(1)
    try:
        for _ in range(count):
            content = mutated(whole, header, draw)
            file.write_bytes(content)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            verdicts[_accepts(file, len(content))] += 1
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < _MEMORY_PER_BYTE * len(content) + _BUFFERS, (used, content)
    finally:
        tracemalloc.stop()
    return verdicts


def _accepts(file: Path, size: int) -> bool:
    try:
        model = open_model(file)
        places = sorted((each.offset, each.size) for each in model.tensors.values())
        describe(model)
    except GgufError as error:
        assert str(file) in str(error) and len(str(error)) < _LONGEST_MESSAGE + len(str(file))
        str(error).encode()
        return False
    end = 0
    for offset, length in places:
        assert end <= offset and offset + length <= size
        end = offset + length
    return True
