# SPDX-License-Identifier: Apache-2.0
"""When the environments of a checkout are installed anew, with a stand-in for pip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tools.dev import environment
from tools.dev.steps import StepError


class Runs:
    """Notes commands; `fails`: pip does."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.fails = False

    def __call__(self, command: Sequence[str], **options: Any) -> None:
        self.commands.append(list(command))
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True, exist_ok=True)
            (Path(command[-1]) / "bin" / "python").touch()
            packages = Path(command[-1]) / "lib" / "python3.11" / "site-packages"
            packages.mkdir(parents=True, exist_ok=True)
        elif self.fails:
            raise StepError("pip failed")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    made = Runs()
    monkeypatch.setattr(environment, "run", made)
    monkeypatch.setattr(environment, "_CLIENTS", environment._Environment(tmp_path / "clients"))
    monkeypatch.setattr(environment, "_VENV", environment._Environment(tmp_path / "venv"))
    monkeypatch.setattr(environment, "_CLIENTS_LOCK", tmp_path / "requirements_clients.txt")
    monkeypatch.setattr(environment, "_RAY", environment._Environment(tmp_path / "ray"))
    monkeypatch.setattr(environment, "_RAY_LOCK", tmp_path / "requirements_ray.txt")
    (tmp_path / "requirements_ray.txt").write_text("ray==2\n")
    monkeypatch.setenv("RTP_LLM_PYTHON", "/usr/bin/python3")
    (tmp_path / "requirements_clients.txt").write_text("litellm==1\n")
    (tmp_path / "runtime_lock.txt").write_text("torch==1\n")
    (tmp_path / "a.whl").write_text("1")
    return made


def test_clients_are_installed_once_for_each_lock(runs: Runs, tmp_path: Path) -> None:
    python = environment.install_clients()
    assert python == tmp_path / "clients" / "bin" / "python"
    create, pip = runs.commands
    assert create[:3] == ["/usr/bin/python3", "-m", "venv"]
    assert pip[-3:] == ["--require-hashes", "-r", str(tmp_path / "requirements_clients.txt")]
    environment.install_clients()
    assert len(runs.commands) == 2
    (tmp_path / "requirements_clients.txt").write_text("litellm==2\n")
    environment.install_clients()
    assert len(runs.commands) == 4


def test_ray_is_a_folder_of_packages(runs: Runs, tmp_path: Path) -> None:
    packages = tmp_path / "ray" / "lib" / "python3.11" / "site-packages"
    assert environment.install_ray() == packages
    assert runs.commands[-1][-1] == str(tmp_path / "requirements_ray.txt")


def test_what_was_not_completed_is_begun_again(runs: Runs) -> None:
    runs.fails = True
    with pytest.raises(StepError):
        environment.install_clients()
    runs.fails = False
    environment.install_clients()
    assert len(runs.commands) == 4


def test_another_wheel_leaves_the_packages_another_lock_does_not(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install() -> list[str]:
        runs.commands.clear()
        linked.clear()
        environment.install(tmp_path / "a.whl", tmp_path)
        return [*linked, *(command[-1] for command in runs.commands if "venv" not in command)]

    linked: list[str] = []
    monkeypatch.setattr(environment, "link_packages", lambda *paths: linked.extend(map(str, paths)))
    wheel = str(tmp_path / "a.whl")
    links = [
        str(tmp_path / "runtime_lock.txt"),
        str(tmp_path / "site-packages"),
        str(tmp_path / "venv" / "lib" / "python3.11" / "site-packages"),
    ]
    assert install() == [*links, wheel]
    assert install() == []
    (tmp_path / "a.whl").write_text("2")
    assert install() == [wheel]
    (tmp_path / "runtime_lock.txt").write_text("torch==2\n")
    assert install() == [*links, wheel]
