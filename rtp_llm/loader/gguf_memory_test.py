# SPDX-License-Identifier: Apache-2.0
"""Weights of a GGUF file take the memory of their blocks, also while they load."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rtp_llm import ops
from rtp_llm.gguf import open_model as open_file
from rtp_llm.testing.gguf.writer import Tensor, write

_HIDDEN, _INNER, _VOCABULARY, _HEADS = 1024, 2816, 2048, 16
_LAYERS = 12  # so that what each load takes anyway is little
_SHARE = 1.1
# Buffers of the threads that read.
_BUFFERS = 4 * 2**20


def _save(folder: Path, layers: int) -> Path:
    """A Llama whose blocks are random bytes."""
    sizes = {
        "block_count": layers,
        "context_length": 64,
        "embedding_length": _HIDDEN,
        "feed_forward_length": _INNER,
        "attention.head_count": _HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    names = {f"blk.0.attn_{part}": (_HIDDEN, _HIDDEN) for part in ("q", "k", "v", "output")}
    names |= {f"blk.0.ffn_{part}": (_INNER, _HIDDEN) for part in ("gate", "up")}
    names |= {"blk.0.ffn_down": (_HIDDEN, _INNER)}
    tensors = {
        "token_embd.weight": _random("Q6_K", (_VOCABULARY, _HIDDEN)),
        "output_norm.weight": Tensor("F32", (_HIDDEN,)),
    }
    for layer in range(layers):
        for name, shape in names.items():
            kind = "Q6_K" if name.endswith("_v") else "Q4_K"
            tensors[f"{name}.weight".replace("0", str(layer))] = _random(kind, shape)
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = Tensor("F32", (_HIDDEN,))
    metadata = {f"llama.{key}": value for key, value in sizes.items()}
    file = folder / f"{layers}.gguf"
    return write(file, {"general.architecture": "llama", **metadata}, tensors)


@functools.cache
def _random(kind: str, shape: tuple[int, int]) -> Tensor:
    size = len(Tensor(kind, shape).content)
    return Tensor(kind, shape, random.Random(size).randbytes(size))


_MEASURE = """
import ctypes, gc, sys, torch
from pathlib import Path
from rtp_llm.testing.models.open_model import open_model

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

def trim():  # what is free must neither take the weights nor be counted
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)

torch.set_num_threads(1)  # each thread that reads has buffers, however small the model is
small, large = map(Path, sys.argv[1:])
kept = open_model(small, torch.bfloat16, max_seq_len=64)
trim()
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = memory("VmRSS:")
model = open_model(large, torch.bfloat16, max_seq_len=64)
peak = memory("VmHWM:") - before
trim()
print(len(model.model.layers), memory("VmRSS:") - before, peak)
"""


def test_memory_is_that_of_the_blocks(tmp_path: Path) -> None:
    """Counted from a model of one layer on, whose load has made what all loads share.

    In a process of its own: memory that earlier tests have scattered would be counted too.
    """
    if not ops.has_kernel("gguf_linear", "cpu"):
        pytest.skip("this library has no kernel for blocks")
    small, large = (_save(tmp_path, layers) for layers in (1, _LAYERS))
    environment = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _MEASURE, str(small), str(large)]
    printed = subprocess.check_output(command, text=True, env=environment)
    layers, resident, peak = map(int, printed.split())
    limit = _SHARE * open_file(large).num_bytes
    assert layers == _LAYERS
    assert resident < limit
    assert peak < limit + _BUFFERS
