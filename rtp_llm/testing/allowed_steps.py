# SPDX-License-Identifier: Apache-2.0
"""How many steps an engine of a test may take, so that none is through before the test has acted.

A file says so: the engine may be in another process, which finds it by an environment variable.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

VARIABLE = "ALLOWED_STEPS"


class AllowedSteps:
    """The test's end. ``environment`` is what the process needs."""

    def __init__(self, folder: Path, steps: int = 0) -> None:
        self._file = folder / "allowed_steps"
        self.environment = {VARIABLE: str(self._file)}
        self.allow(steps)

    def allow(self, steps: int) -> None:
        """So many, counted from the start of the engine."""
        # Whoever reads finds the old number or the new one, and never half of one.
        written = self._file.with_suffix(".new")
        written.write_text(str(steps))
        written.replace(self._file)

    def allow_all(self) -> None:
        """It goes on as long as it has work."""
        self.allow(10**9)


def allowed_steps() -> float:
    """The engine's end: as many as it has work for where no test says how many."""
    file = os.environ.get(VARIABLE)
    return math.inf if file is None else int(Path(file).read_text())
