# SPDX-License-Identifier: Apache-2.0
"""Where the client and the engine process meet: two ZeroMQ sockets in a private folder."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

# sockaddr_un holds 107 characters; a test's own temporary folder can be longer than that.
_LONGEST_FOLDER = 80


@dataclass(frozen=True)
class EngineAddress:
    """A folder that only this user may enter, and the two sockets in it."""

    folder: Path

    @classmethod
    def create(cls) -> EngineAddress:
        """Make the folder, in /tmp when the usual place has too long a name."""
        base = tempfile.gettempdir()
        root = base if len(base) <= _LONGEST_FOLDER else "/tmp"
        return cls(Path(tempfile.mkdtemp(prefix="rtp-llm-", dir=root)))

    @property
    def to_engine(self) -> str:
        """Requests and aborts."""
        return f"ipc://{self.folder}/requests"

    @property
    def from_engine(self) -> str:
        """Steps, heartbeats, log lines."""
        return f"ipc://{self.folder}/outputs"

    def remove(self) -> None:
        """Delete the folder and its sockets."""
        shutil.rmtree(self.folder, ignore_errors=True)
