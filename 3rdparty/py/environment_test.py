"""Environments from locks: made once, shared, whole or not there; without a network."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path("3rdparty/py/environment.py").absolute()
_OLD = time.time() - 30 * 24 * 3600


class Machine:
    """A cache, an index of one package and places that ask for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.wheels = folder, folder / "cache", folder / "wheels"
        self.wheels.mkdir()
        self.lock = self.lock_of("1.0")

    def lock_of(self, version: str) -> Path:
        """A lock of the package in `version`, which the index has from then on."""
        wheel = _wheel(self.wheels, version)
        lock = self.folder / f"requirements_{version}.txt"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lock.write_text(f"thing=={version} --hash=sha256:{digest}\n")
        return lock

    def start(
        self, place: str, lock: Path | None = None, cached: bool = True
    ) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-I",
            str(SCRIPT),
            str(self.folder / place),
            str(lock or self.lock),
        ]
        command += ["--cache", str(self.cache)] if cached else []
        settings = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }
        return subprocess.Popen(
            command, env={**os.environ, **settings}, stderr=subprocess.PIPE, text=True
        )

    def make(self, place: str, lock: Path | None = None, cached: bool = True) -> Path:
        process = self.start(place, lock, cached)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        return self.folder / place

    @property
    def environments(self) -> list[Path]:
        return [path for path in (self.cache / "environments").iterdir() if path.is_dir()]


def _wheel(folder: Path, version: str) -> Path:
    info = f"thing-{version}.dist-info"
    files = {
        "thing.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for name, text in files.items()
    }
    rows = [f"{name},sha256={digests[name]},{len(files[name])}\n" for name in files]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    path = folder / f"thing-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _version(place: Path) -> str:
    program = "import thing; print(thing.version, thing.__file__)"
    python = place / "venv" / "bin" / "python3"
    printed = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    version, _ = printed.stdout.split()
    return version


def test_the_second_to_ask_installs_nothing(machine: Machine) -> None:
    first = machine.make("first")
    wheel = machine.wheels / "thing-1.0-py3-none-any.whl"
    wheel = wheel.rename(machine.folder / wheel.name)
    second = machine.make("second")
    assert first.readlink() == second.readlink() == machine.environments[0]
    assert _version(second) == "1.0"
    assert (second / "site-packages" / "thing.py").exists()
    assert (second / "runtime_lock.txt").read_text() == machine.lock.read_text()

    # What an interrupted build left is made anew.
    (first / "complete").unlink()
    (first / "venv" / "bin" / "python3").unlink()
    wheel.rename(machine.wheels / wheel.name)
    assert _version(machine.make("third")) == "1.0"


def test_builds_at_the_same_time_share_one_whole_environment(machine: Machine) -> None:
    processes = [machine.start(f"place{number}") for number in range(3)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert len(machine.environments) == 1
    assert [_version(machine.folder / f"place{number}") for number in range(3)] == ["1.0"] * 3


def test_a_failed_installation_is_not_taken_for_one(machine: Machine) -> None:
    (machine.wheels / "thing-1.0-py3-none-any.whl").write_bytes(b"another file")
    process = machine.start("place")
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "thing==1.0" in errors
    assert not (machine.folder / "place").exists()
    assert not list(machine.cache.glob("environments/*/complete"))


def test_without_a_cache_it_is_made_in_its_place(machine: Machine) -> None:
    place = machine.make("place", cached=False)
    assert not place.is_symlink()
    assert _version(place) == "1.0"
    assert not machine.cache.exists()


def test_unused_environments_go_and_used_ones_stay(machine: Machine) -> None:
    cache = machine.cache / "environments"
    for name in ("linked", "recent", "unused"):
        (cache / name).mkdir(parents=True)
        (cache / name / "users").write_text(f"{machine.folder / name}\n")
        (cache / name / "complete").touch()
    (machine.folder / "linked").symlink_to(cache / "linked")
    for name in ("linked", "unused"):
        os.utime(cache / name / "complete", (_OLD, _OLD))
    place = machine.make("place", machine.lock_of("2.0"))
    assert _version(place) == "2.0"
    names = {path.name for path in machine.environments}
    assert names == {"linked", "recent", place.readlink().name}
