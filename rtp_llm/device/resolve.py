# SPDX-License-Identifier: Apache-2.0
"""Selects the device of this process: the user's choice, else the first usable one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from rtp_llm.device.base import Device, DeviceError
from rtp_llm.device.built import accelerators_present, built_devices, built_targets
from rtp_llm.device.choice import load_class, reasons

DEVICE_VARIABLE = "RTP_LLM_DEVICE_TYPE"
# "module:class": stands in for the class of the device that DEVICE_VARIABLE names, for development.
CLASS_VARIABLE = "RTP_LLM_DEVICE_CLASS"
_logger = logging.getLogger("rtp_llm.device")

# Name -> class, imported only when considered. Without a user's choice the first usable one is
# taken, so a machine that serves on CUDA keeps doing so when another vendor's GPU is added.
# At most one of cuda and rocm is usable, since PyTorch is built for one of them.
_CLASSES = {
    "cuda": "rtp_llm.device.cuda:CudaDevice",
    "rocm": "rtp_llm.device.rocm:RocmDevice",
    "xpu": "rtp_llm.device.xpu:XpuDevice",
    "cpu": "rtp_llm.device.cpu:CpuDevice",
}
# The torch that a device's wheel needs, and how to get it.
_TORCH_OF = {
    "cuda": "torch for CUDA 13 (pip install 'torch>=2.11,<2.14' from PyPI)",
    "rocm": "torch for ROCm (pip install torch --index-url "
    "https://download.pytorch.org/whl/rocm7.2)",
    "xpu": "torch for XPU (pip install torch --index-url https://download.pytorch.org/whl/xpu)",
}
# Names that other engines of this family know.
_WITHOUT_WHEEL = ("yitian", "armcpu", "ppu")


def known_devices() -> tuple[str, ...]:
    """All device names that can be requested, whether this installation has them or not."""
    return tuple(_CLASSES)


def _built_here() -> tuple[str, ...]:
    return built_devices(known_devices())


class Resolver:
    """Resolves and caches the device of a process for each requested name."""

    def __init__(
        self,
        torch_module: Any = torch,
        environ: Mapping[str, str] = os.environ,
        built: Callable[[], tuple[str, ...]] = _built_here,
        present: Callable[[], list[str]] = accelerators_present,
    ) -> None:
        """The arguments stand for the machine and the installation; tests replace them."""
        self._torch, self._environ = torch_module, environ
        self._built, self._present = built, present
        self._lock = threading.Lock()
        self._resolved: dict[str, Device] = {}

    def resolve(self, requested: str | None = None) -> Device:
        """Return the requested device, or the first usable one for "auto"; see resolve_device."""
        cleaned = _clean(requested)
        with self._lock:
            if cleaned not in self._resolved:
                self._resolved[cleaned] = self._find(cleaned)
            return self._resolved[cleaned]

    def _find(self, cleaned: str) -> Device:
        name = _clean(self._environ.get(DEVICE_VARIABLE)) if cleaned == "auto" else cleaned
        return self._first_usable() if name == "auto" else self._forced(name)

    def _forced(self, name: str) -> Device:
        setting = f"device_type={name} ({DEVICE_VARIABLE})"
        if name not in _CLASSES:
            reason = "has no kernels and no wheel" if name in _WITHOUT_WHEEL else "is not a device"
            raise DeviceError(f"{setting} {reason}; valid: auto, {_listed(_CLASSES)}")
        built = self._built()
        if name not in built:
            raise DeviceError(
                f"{setting}: this installation was built for {_listed(built)}. Install the {name} "
                f"wheel (./dev build {name}), or set {DEVICE_VARIABLE} to {' or '.join(built)}"
            )
        device = self._make(name)
        available = device.available()
        if not available:
            raise DeviceError(f"{setting} cannot be used here: {available.reason}")
        return device

    def _first_usable(self) -> Device:
        built = self._built()
        devices = [self._make(name) for name in _CLASSES if name in built]
        self._check_torch(built, devices)
        answers = [(device, device.available()) for device in devices]
        usable = [device for device, answer in answers if answer]
        if not usable:
            raise DeviceError(f"no device can be used here: {reasons(answers)}")
        self._mention_others(usable)
        if usable[0].name == "cpu":
            self._mention_the_cpu([f"{d.name}: {a.reason}" for d, a in answers if not a])
        return usable[0]

    def _check_torch(self, built: tuple[str, ...], devices: list[Device]) -> None:
        """Raise DeviceError if a device's wheel would fall back to the CPU because of its torch.

        If only the driver or the device is missing, it falls back with a warning.
        """
        if len(built) != 2 or built[0] == "cpu":
            return
        answer = devices[0].fits_torch()
        if not answer:
            name = built[0]
            raise DeviceError(
                f"this is the {name} build of rtp-llm, but {answer.reason}. Install "
                f"{_TORCH_OF[name]}; or serve on the CPU with --device-type cpu "
                f"({DEVICE_VARIABLE}=cpu)"
            )

    def _make(self, name: str) -> Device:
        kind = self._class_of(name)
        if name == "cpu":
            cpu: Device = kind()
            return cpu
        device: Device = kind(self._torch, self._environ, built_targets())
        return device

    def _class_of(self, name: str) -> Any:
        """The class of a device, or the one that stands in for it."""
        other = self._environ.get(CLASS_VARIABLE)
        if other and _clean(self._environ.get(DEVICE_VARIABLE)) == name:
            return load_class(other)
        return load_class(_CLASSES[name])

    def _mention_others(self, usable: list[Device]) -> None:
        chosen, *others = [device.name for device in usable if device.name != "cpu"] or ["cpu"]
        if others:
            _logger.warning(
                "%s and %s can both be used here: %s is taken; set %s to choose",
                chosen,
                _listed(others),
                chosen,
                DEVICE_VARIABLE,
            )

    def _mention_the_cpu(self, reasons: list[str]) -> None:
        idle = self._present()
        if reasons:
            _logger.warning("serving on the CPU: %s", "; ".join(reasons))
        elif idle:
            _logger.warning(
                "serving on the CPU: this wheel was built for it, although the machine has %s",
                " and ".join(idle),
            )


_resolver = Resolver()


def resolve_device(requested: str | None = None) -> Device:
    """The device of this process, found once per request and then remembered.

    `requested` is a name of known_devices(); None or "auto" looks at RTP_LLM_DEVICE_TYPE, then
    takes the first usable one of those that this installation was built for. Raises DeviceError
    when the choice cannot be used.
    """
    return _resolver.resolve(requested)


def _clean(name: str | None) -> str:
    return (name or "").strip().lower() or "auto"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
