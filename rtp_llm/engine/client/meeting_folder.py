# SPDX-License-Identifier: Apache-2.0
"""The folder in which the ranks of an engine meet."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rtp_llm.distributed.membership import Membership


class MeetingFolder:
    """A temporary folder, and the membership of each of `size` ranks that meet there."""

    def __init__(self, size: int, devices: int = 1) -> None:
        """`devices`: how many each rank has."""
        self._size, self._devices = size, devices
        self.path = self._new()

    def membership(self, rank: int) -> Membership:
        """The membership of a rank."""
        return Membership(rank, self._size, str(self.path / "meet"), self._devices)

    def renew(self) -> None:
        """Replace the folder: ranks that are started again must not find what others left."""
        self.remove()
        self.path = self._new()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    @staticmethod
    def _new() -> Path:
        return Path(tempfile.mkdtemp(prefix="rtp-llm-ranks-"))
