# SPDX-License-Identifier: Apache-2.0
"""Limits the steps of a test's engine, so that it does not finish before the test has acted.

The limit is in a file, which an engine in another process finds by an environment variable.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

VARIABLE = "ALLOWED_STEPS"


class AllowedSteps:
    """The test's side. ``environment`` has the variables that the engine process needs."""

    def __init__(self, folder: Path, steps: int = 0) -> None:
        self._file = folder / "allowed_steps"
        self.environment = {VARIABLE: str(self._file)}
        self.allow(steps)

    def allow(self, steps: int) -> None:
        """Allow `steps` steps in all, counted from the start of the engine."""
        # Readers see either the old number or the new one, never a partial one.
        written = self._file.with_suffix(".new")
        written.write_text(str(steps))
        written.replace(self._file)

    def allow_all(self) -> None:
        """Lift the limit: the engine runs as long as it has work."""
        self.allow(10**9)


def allowed_steps() -> float:
    """The engine's side: the number of allowed steps, infinite if no test sets a limit."""
    file = os.environ.get(VARIABLE)
    return math.inf if file is None else int(Path(file).read_text())
