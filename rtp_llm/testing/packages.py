# SPDX-License-Identifier: Apache-2.0
"""Python packages that are installed, or missing, inside a test only."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest


def pretend_installed(monkeypatch: pytest.MonkeyPatch, installed: bool, *packages: str) -> None:
    """Make find_spec report `packages` as installed or not; for others it finds what is there.

    Nothing else may be pretended: the operator library and the runtime are found that way, too.
    """
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        if name in packages:
            return ModuleType(name) if installed else None
        return find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
