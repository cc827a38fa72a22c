# SPDX-License-Identifier: Apache-2.0
"""Records, in each process of a server, the files of rtp_llm with functions that are called.

`RECORD_CALLS_IN` names a folder. Calls are recorded while it has a file `on`; once that is gone
the process writes `<pid>.json`: its command line, and by file the function that was called first
and when (seconds of the monotonic clock), in that order.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import threading
import time
from types import FrameType
from typing import Any

_POLL_SECONDS = 0.05


class Recorder:
    """Records the calls in this process, from `start` on, while the folder requests it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._on = False
        self._first_calls: dict[str, tuple[str, float]] = {}

    def start(self) -> None:
        """Watch all threads that begin from now on, and this one."""
        threading.Thread(target=self._poll, daemon=True).start()
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._on and event == "call":
            code = frame.f_code
            file = code.co_filename
            if "/rtp_llm/" in file and file not in self._first_calls:
                self._first_calls[file] = (code.co_qualname, time.monotonic())

    def _poll(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            on = (self._folder / "on").exists()
            if self._on and not on:
                text = json.dumps({"command": sys.orig_argv, "calls": self._first_calls})
                (self._folder / f"{os.getpid()}.json").write_text(text)
                self._first_calls = {}
            self._on = on


def start() -> None:
    """Entry point, called by the `sitecustomize` of every process."""
    Recorder(pathlib.Path(os.environ["RECORD_CALLS_IN"])).start()
