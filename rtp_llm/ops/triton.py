# SPDX-License-Identifier: Apache-2.0
"""Operators with a Triton function as their kernel; they run on CUDA, other devices have none."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.schema import OPERATORS, OperatorEntry

_FOLDER = "rtp_llm.kernels.triton"


@cache
def installed() -> bool:
    """Whether the package triton is there; it is not in every device's lock."""
    return importlib.util.find_spec("triton") is not None


def compile_tiles(operator: str, *arguments: Any, **options: Any) -> None:
    """Compile all that `operator` may launch, before the first request needs it.

    The arguments are those of ``compile_tiles`` in the module of its kernel.
    """
    module, _, _ = OPERATORS[operator].triton.partition(":")
    importlib.import_module(f"{_FOLDER}.{module}").compile_tiles(*arguments, **options)


class TritonOperators:
    """Those of a namespace, which the native library does not know."""

    def __init__(
        self, namespace: str, entries: Iterable[OperatorEntry], device_type: str = "cuda"
    ) -> None:
        self._namespace = namespace
        self._device_type = device_type
        self._targets = {entry.name: entry for entry in entries if entry.triton}
        self._installed = installed()
        self._library: torch.library.Library | None = None

    def define(self) -> None:
        """Register schemas and, where Triton is installed, kernels. Imports none of them."""
        self._library = torch.library.Library(self._namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        for entry in self._targets.values():
            self._library.define(entry.schema)  # type: ignore[no-untyped-call]
            if self._installed:
                kernel = _Kernel(entry.triton)
                self._library.impl(entry.name, kernel.__call__, self._device_type.upper())  # type: ignore[no-untyped-call]

    def direct(self, name: str, overload: Callable[..., Any]) -> Callable[..., Any]:
        """What calls an operator: `overload`, or the kernel in Triton itself where it can run.

        The dispatcher would add 5 us, coming from Python and going back there. It is needed where
        something is traced.
        """
        if name not in self._targets or not self._installed:
            return overload
        kernel, device_type = _Kernel(self._targets[name].triton), self._device_type

        def call(*arguments: Any) -> Any:
            first = arguments[0]
            runs = type(first) is Tensor and first.device.type == device_type
            if runs and not torch.compiler.is_compiling():
                return kernel.function(*arguments)
            return overload(*arguments)

        return call


class _Kernel:
    """A function of rtp_llm/kernels/triton, imported when it is first called."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.function: Callable[..., Any] = self._import_and_call

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def _import_and_call(self, *arguments: Any) -> Any:
        module, _, name = self._target.partition(":")
        self.function = getattr(importlib.import_module(f"{_FOLDER}.{module}"), name)
        return self.function(*arguments)
