# SPDX-License-Identifier: Apache-2.0
"""Which devices this installation has kernels for, and which GPUs the machine has.

A wheel carries `_build.json`. In a source tree `./dev build` keeps one entry per device in
`.rtp_llm_build.json`: {"cuda": {"ops_library": PATH, "runtime": PATH}, ...}.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(os.path.abspath(__file__)).parent.parent
BUILD_RECORD = ".rtp_llm_build.json"
_LIBRARY = re.compile(r"librtp_llm_(\w+)\.so")
# The line in torch/version.py for the device torch was built for: `cuda: Optional[str] = '13.0'`.
_TORCH_BUILD = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *['\"]", re.MULTILINE)
_TORCH_VERSION = re.compile(r"^__version__ *= *['\"]([^'\"]*)", re.MULTILINE)


def built_devices(
    known: tuple[str, ...],
    package: Path = PACKAGE,
    environ: Mapping[str, str] = os.environ,
    torch_device: str | None = None,
) -> tuple[str, ...]:
    """Devices of this installation in order of preference: its own, then the CPU.

    A wheel names its device in `_build.json`, a source tree in the name of its operator library; a
    source tree without one may use all `known` devices. `torch_device` (None: of the installed
    torch) selects one of several builds of a source tree.
    """
    name = _read(package / "_build.json").get("device")
    if name is None:
        name = _of_library(package, environ, torch_device or torch_build().device)
    if name not in known:
        return known
    return (name,) if name == "cpu" else (name, "cpu")


def built_targets(package: Path = PACKAGE) -> tuple[str, ...]:
    """What the wheel's GPU code was compiled for (sm_80, gfx90a, ...); empty in a source tree."""
    return tuple(map(str, _read(package / "_build.json").get("targets", ())))


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version ("" without one) and the device it was built for."""

    version: str
    device: str


def torch_build(version_file: Path | None = None) -> TorchBuild:
    """The torch that Python would import, read from its version.py without importing it."""
    if version_file is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return TorchBuild("", "cpu")
        version_file = Path(spec.origin).with_name("version.py")
    text = version_file.read_text() if version_file.is_file() else ""
    version, built = _TORCH_VERSION.search(text), _TORCH_BUILD.findall(text)
    device = built[0].replace("hip", "rocm") if built else "cpu"
    return TorchBuild(version[1] if version else "", device)


def describe_build(known: tuple[str, ...], package: Path = PACKAGE) -> str:
    """Describe in one line the devices this installation was built for and the installed torch."""
    torch = torch_build()
    kind = "wheel" if (package / "_build.json").is_file() else "source tree"
    installed = f"torch {torch.version}, for {torch.device}" if torch.version else "no torch"
    return f"{kind} with kernels for {', '.join(built_devices(known, package))}; {installed}"


def recorded_builds(tree: Path) -> dict[str, dict[str, str]]:
    """Map each device that `./dev build` built in the source `tree` to its libraries.

    Raises ValueError if the record cannot be read.
    """
    content = _read(tree / BUILD_RECORD)
    return {name: entry for name, entry in content.items() if isinstance(entry, dict)}


def recorded_device(builds: Mapping[str, object], torch_device: str) -> str | None:
    """Choose the recorded build for the installed torch, else the CPU's, else any."""
    return next((name for name in (torch_device, "cpu", *builds) if name in builds), None)


def _read(record: Path) -> dict[str, Any]:
    found = json.loads(record.read_text()) if record.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{record} is not a JSON object")
    return found


def _of_library(package: Path, environ: Mapping[str, str], torch_device: str) -> str | None:
    """The device that the operator library of a source tree is named after."""
    override = environ.get("RTP_LLM_OPS_LIBRARY")
    if override:
        found = _LIBRARY.fullmatch(Path(override).name)
        return found[1] if found else None
    for library in sorted((package / "lib").glob("librtp_llm_*.so")):
        if found := _LIBRARY.fullmatch(library.name):
            return found[1]
    return recorded_device(recorded_builds(package.parent), torch_device)


def accelerators_present(root: Path = Path("/")) -> list[str]:
    """Kinds of GPU with a loaded driver, detected from device files without vendor libraries."""
    found = []
    if any((root / "dev").glob("nvidia[0-9]*")):
        found.append("an NVIDIA GPU")
    if (root / "dev/kfd").exists():
        found.append("an AMD GPU")
    vendors = (root / "sys/class/drm").glob("renderD*/device/vendor")
    if any(vendor.read_text().strip() == "0x8086" for vendor in vendors):
        found.append("an Intel GPU")
    return found
