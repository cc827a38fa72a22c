# SPDX-License-Identifier: Apache-2.0
"""Former import paths: modules that other engines import, now in rtp_llm.compat."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any


def moved(old: str, new: str) -> Callable[[str], Any]:
    """The `__getattr__` of module `old`, which forwards all names to module `new`; warns once.

    This room imports nothing above it, so `new` is a name.
    """
    # Of the module that imports `old`; the frames of importlib between do not count.
    warnings.warn(
        f"{old} is now {new}; the old name goes with the next version", DeprecationWarning, 3
    )
    module = importlib.import_module(new)
    return lambda name: getattr(module, name)
