# SPDX-License-Identifier: Apache-2.0
"""What nodes must have in common is compared by content, and differences are named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.ranks.shared_settings import differences, shared_settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 64}')
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


def compare(one: Path, other: Path, **changed: Any) -> list[str]:
    ours = shared_settings(Settings(model=str(one)))
    return differences(ours, shared_settings(Settings(model=str(other), **changed)))


def test_a_model_may_lie_elsewhere(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    own: dict[str, Any] = {"node_rank": 1, "worker_key_file": "/key", "served_model_name": "x"}
    assert compare(model, copy, **own, port=1, api_key="secret", log_level="debug") == []


def test_another_model_is_named(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "config.json").write_text('{"hidden_size": 65}')
    (different,) = compare(model, copy)
    assert different.startswith("content of model: ")
    shutil.copy(model / "config.json", copy)
    (copy / "model.safetensors").write_bytes(bytes(99))
    (different,) = compare(model, copy)
    assert different.startswith("content of model: ")


def test_settings_that_ranks_read_are_named(model: Path) -> None:
    changed: dict[str, Any] = {"kv_cache_dtype": "fp8_e4m3", "step_timeout": 5.0}
    assert compare(model, model, **changed) == [
        "kv_cache_dtype: auto on node 0, fp8_e4m3 on this one",
        "step_timeout: 300.0 on node 0, 5.0 on this one",
    ]
    ours = shared_settings(Settings(model=str(model)))
    assert differences(ours, {**ours, "protocol of nodes": 0})
