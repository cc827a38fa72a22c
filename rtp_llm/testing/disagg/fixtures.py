# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need one model and no special one: it, and an engine that has it alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rtp_llm.testing.disagg.workers import SIZES
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two workers do not cut a prompt as one engine does, and no token depends on that."""
    made = tmp_path_factory.mktemp("model")
    save_model(made, "qwen3")
    with each_token_alone():
        yield made


@pytest.fixture(scope="module")
def fused(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **SIZES)
