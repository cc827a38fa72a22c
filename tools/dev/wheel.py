# SPDX-License-Identifier: Apache-2.0
"""./dev build: the wheel of a device into dist/, and where the source tree finds its libraries."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.dev import bazel
from tools.dev.steps import ROOT, StepError, write_if_changed

DEVICES = ("cpu", "cuda", "rocm", "xpu")


@dataclass(frozen=True)
class Built:
    """A wheel that Bazel built, and the repository of the packages that it was built with."""

    wheel: Path
    packages: Path


def build(device: str) -> Built:
    """Builds the wheel of `device`; StepError when the device is unknown or cannot be built."""
    if device not in DEVICES:
        raise StepError(f"no device {device!r}", f"the devices are {', '.join(DEVICES)}")
    config = f"--config={device}"
    bazel.build(config, f"//rtp_llm:rtp_llm_{device}", "//rtp_llm:native_files")
    outputs = bazel.output_folder([config]) / "rtp_llm"
    (wheel,) = (outputs / f"rtp_llm_{device}").glob("*.whl")
    _write_build_record(outputs, device)
    return Built(wheel, bazel.package_folder(device))


def copy_to_dist(wheel: Path) -> Path:
    """dist/ gets the wheel; an older one for the same device goes."""
    folder = ROOT / "dist"
    folder.mkdir(exist_ok=True)
    version = wheel.name.split("-")[1]
    for old in folder.glob(f"rtp_llm-{version}-*.whl"):
        old.unlink()
    copy = folder / wheel.name
    shutil.copyfile(wheel, copy)
    return copy


def _write_build_record(outputs: Path, device: str) -> None:
    """The entries of other devices stay: the running torch decides which one is taken."""
    (runtime,) = outputs.glob("_runtime.*.so")
    entry = {
        "ops_library": str(outputs / "lib" / f"librtp_llm_{device}.so"),
        "runtime": str(runtime),
    }
    record = ROOT / ".rtp_llm_build.json"
    others = {name: kept for name, kept in _entries(record).items() if _is_there(kept)}
    write_if_changed(record, json.dumps({**others, device: entry}, indent=2) + "\n")


def _entries(record: Path) -> dict[str, Any]:
    try:
        content = json.loads(record.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_there(entry: object) -> bool:
    return isinstance(entry, dict) and all(Path(path).is_file() for path in entry.values())
