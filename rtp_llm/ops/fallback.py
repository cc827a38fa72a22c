# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher finds for a device that has no native kernel of an operator."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch

from rtp_llm.ops.schema import OperatorEntry

_DEVICE_KEYS = ("CPU", "CUDA", "XPU")
_log = logging.getLogger(__name__)


class MissingKernelError(NotImplementedError):
    """No native kernel for the device, and references were not allowed."""


class Fallbacks:
    """Fills the gaps of the operators of one namespace: with an error, or with the references."""

    def __init__(self, namespace: str, entries: Iterable[OperatorEntry]) -> None:
        self._namespace = namespace
        self._entries = tuple(entries)
        self._library: torch.library.Library | None = None
        self._missing: dict[str, list[OperatorEntry]] = {}

    def install(self, *, allow_references: bool, native_library: str) -> None:
        """Replace what an earlier call installed. Native kernels are never touched."""
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
        self._library = torch.library.Library(self._namespace, "IMPL")  # type: ignore[no-untyped-call]
        self._missing = {
            key: [entry for entry in self._entries if not self._finds_kernel(entry, key)]
            for key in _DEVICE_KEYS
        }
        for entry in self._entries:
            for key in _DEVICE_KEYS:
                if entry in self._missing[key]:
                    function = (
                        _reference(entry, key)
                        if allow_references or entry.composite
                        else _refusal(entry, key, native_library)
                    )
                    self._library.impl(entry.name, function, key)  # type: ignore[no-untyped-call]

    def missing(self, key: str) -> list[str]:
        """Operators that had no native kernel for a dispatch key, though a device needs them."""
        return [entry.name for entry in self._missing[key] if not entry.optional]

    def has_kernel(self, name: str, key: str) -> bool:
        """Whether an operator had a native kernel for a dispatch key at the last install."""
        return key in self._missing and name not in (entry.name for entry in self._missing[key])

    def _finds_kernel(self, entry: OperatorEntry, key: str) -> bool:
        qualified = f"{self._namespace}::{entry.name}"
        return torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key)


def function_of(target: str) -> Callable[..., Any]:
    """The function "module:name"; the name may have dots."""
    module, _, name = target.partition(":")
    function: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
    return function


def lazy(target: str) -> Callable[..., Any]:
    """The function "module:name", imported when it is first called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function_of(target)(*args, **kwargs)

    return call


def _refusal(entry: OperatorEntry, key: str, native_library: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise MissingKernelError(
            f"operator {entry.name} has no kernel for {key} in {native_library}. Install the wheel "
            "of that device, or allow the slow PyTorch reference with --allow-reference-ops."
        )

    return refuse


def _reference(entry: OperatorEntry, key: str) -> Callable[..., Any]:
    reference = lazy(entry.reference)
    warned = entry.composite

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        if not warned:
            warned = True
            _log.warning(
                "operator %s has no kernel for %s: the PyTorch reference runs", entry.name, key
            )
        return reference(*args, **kwargs)

    return run
