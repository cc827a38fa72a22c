# SPDX-License-Identifier: Apache-2.0
"""The wheel in an empty environment, for tests: installed by pip, with the lock's packages."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Installed:
    """A virtual environment that has the wheel and the packages of the lock."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def command(self) -> Path:
        return self.folder / "bin" / "rtp-llm"

    @property
    def packages(self) -> Path:
        (folder,) = self.folder.glob("lib/python*/site-packages")
        return folder

    def run(self, *arguments: str | Path) -> str:
        """Output of a command in this environment; CalledProcessError when it fails."""
        done = subprocess.run(
            [str(part) for part in arguments],
            cwd=self.folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout


def find_wheel(folder: Path) -> Path:
    """The one wheel in the output folder of //rtp_llm:wheel."""
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Installed:
    """pip installs `wheel` into a new environment in `folder`.

    The packages of the lock are linked rather than installed again: seconds instead of a minute,
    and they lie where the wheel's run paths look for them.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    environment = Installed(folder)
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        (environment.packages / package.name).symlink_to(package)
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python), "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    return environment


def clean_environment() -> dict[str, str]:
    """The environment of a user: nothing of Bazel's, no library or module paths."""
    dropped = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")
    return {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith(("RTP_LLM_", "TEST_", "RUNFILES", "BAZEL"))
    }
