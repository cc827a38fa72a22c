# SPDX-License-Identifier: Apache-2.0
"""Quantisation states of bitsandbytes that cannot be used are refused by the weight's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rtp_llm.layers.weights.stored.bitsandbytes import Bnb4
from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError
from rtp_llm.loader.quantization_states import with_states
from rtp_llm.testing.models.stored_checkpoints import nf4

STATE = "weight.quant_state.bitsandbytes__nf4"


def state(**values: Any) -> dict[str, Tensor]:
    known = {"blocksize": 64, "shape": [4, 128], "nested_blocksize": 256, "nested_offset": 0.5}
    content = json.dumps({**known, **values}).encode()
    return {STATE: torch.tensor(list(content), dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({STATE: None}, "m.weight.quant_state is missing"),
        ({STATE: torch.zeros(8, dtype=torch.uint8)}, "m: the quantisation state"),
        ({STATE: torch.zeros(5000, dtype=torch.uint8)}, "has 5000 bytes"),
        (state(blocksize=96), r"m.weight is \[4, 128\] in blocks of 96"),
        (state(blocksize=0), "in blocks of 0"),
        (state(shape=[8, 128]), r"is \[256, 1\], not \[8, 64\] in all"),
        (state(shape=[4]), "not enough values to unpack"),
        (state(nested_blocksize=0), "ZeroDivisionError|m: the quantisation state"),
        (state(nested_blocksize=4), "m.weight.nested_absmax is .* not 2 numbers of float32"),
        ({"weight.quant_map": torch.zeros(15)}, "not 16 numbers of float32"),
        ({"weight.absmax": None}, "KeyError"),
    ],
)
def test_malformed_states(tmp_path: Path, changes: dict[str, Tensor | None], message: str) -> None:
    tensors = {**nf4(torch.randn(4, 128))[0], **changes}
    kept = {f"m.{name}": each for name, each in tensors.items() if each is not None}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        with_states({"m": Bnb4()}, Checkpoint.open(tmp_path))
