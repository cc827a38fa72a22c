# SPDX-License-Identifier: Apache-2.0
"""Importing the package costs nothing: no torch, no numpy, no file, no network."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("torch", "numpy", "fastapi", "uvicorn", "zmq", "tokenizers", "safetensors")


def _modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import rtp_llm", "import rtp_llm.cli", "from rtp_llm import SamplingParams"]
)
def test_import_is_cheap(statement: str) -> None:
    assert not _modules_after(statement) & set(_HEAVY)


@pytest.mark.parametrize("room", ["bench.serve", "chat.repl", "chat.target", "client.openai"])
def test_clients_import_no_torch(room: str) -> None:
    assert "torch" not in _modules_after(f"import rtp_llm.{room}")


def test_torch_comes_with_what_needs_it() -> None:
    assert "torch" in _modules_after("import rtp_llm.ops, torch")
