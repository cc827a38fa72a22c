"""Which devices this installation has kernels for, and which GPUs the machine has."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(os.path.abspath(__file__)).parent.parent
_LIBRARY = re.compile(r"librtp_llm_(\w+)\.so")


def built_devices(
    known: tuple[str, ...], package: Path = PACKAGE, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Devices of this installation, the preferred first: its own, then the CPU.

    A wheel says it in `_build.json`, a source tree by the name of its operator library; one that
    has none yet may use all the `known` ones.
    """
    name = _device_of(package / "_build.json") or _of_library(package, environ)
    if name not in known:
        return known
    return (name,) if name == "cpu" else (name, "cpu")


def built_targets(package: Path = PACKAGE) -> tuple[str, ...]:
    """What the wheel's GPU code was compiled for (sm_80, gfx90a, ...); empty in a source tree."""
    return tuple(map(str, _read(package / "_build.json").get("targets", ())))


def _read(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
    return found


def _device_of(record: Path) -> str | None:
    return _read(record).get("device")


def _of_library(package: Path, environ: Mapping[str, str]) -> str | None:
    """The device that the operator library of a source tree is named after."""
    override = environ.get("RTP_LLM_OPS_LIBRARY")
    if override:
        found = _LIBRARY.fullmatch(Path(override).name)
        return found[1] if found else None
    for library in sorted((package / "lib").glob("librtp_llm_*.so")):
        if found := _LIBRARY.fullmatch(library.name):
            return found[1]
    return _device_of(package.parent / ".rtp_llm_build.json")


def accelerators_present(root: Path = Path("/")) -> list[str]:
    """Kinds of GPU whose driver is loaded, told from device files alone: no vendor library."""
    found = []
    if any((root / "dev").glob("nvidia[0-9]*")):
        found.append("an NVIDIA GPU")
    if (root / "dev/kfd").exists():
        found.append("an AMD GPU")
    vendors = (root / "sys/class/drm").glob("renderD*/device/vendor")
    if any(vendor.read_text().strip() == "0x8086" for vendor in vendors):
        found.append("an Intel GPU")
    return found
