# SPDX-License-Identifier: Apache-2.0
"""The committed bundle, built anew from npm's lock; types and form of its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parent
INPUTS = (".prettierignore", "build.mjs", "package-lock.json", "package.json", "tsconfig.json")


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with the packages of the lock."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("page")
    for name in INPUTS:
        shutil.copy(PAGE / name, folder)
    shutil.copytree(PAGE / "source", folder / "source")
    npm(folder, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    return folder


def npm(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "HOME": str(Path.home())}
    done = subprocess.run(
        ["npm", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_committed_bundle_is_built_byte_for_byte(folder: Path) -> None:
    npm(folder, "run", "build")
    built = {path.name: path.read_bytes() for path in (folder / "bundle").iterdir()}
    committed = {path.name: path.read_bytes() for path in (PAGE / "bundle").iterdir()}
    assert built.keys() == committed.keys()
    for name, content in built.items():
        assert content == committed[name], name


def test_sources_have_right_types_and_form(folder: Path) -> None:
    npm(folder, "run", "check")
