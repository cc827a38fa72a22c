# SPDX-License-Identifier: Apache-2.0
"""What a router in this process prints and logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from rtp_llm.router import run


class Received:
    """Made before the router, which then says every 20 ms what it waits for."""

    def __init__(
        self,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._capsys, self._caplog, self._printed = capsys, caplog, ""
        monkeypatch.setattr(run, "AWAITED_SECONDS", 0.02)
        monkeypatch.setattr(logging.getLogger("rtp_llm"), "propagate", True)
        caplog.set_level(logging.INFO, "rtp_llm")

    @property
    def printed(self) -> str:
        self._printed += self._capsys.readouterr().out
        return self._printed

    @property
    def logged(self) -> list[str]:
        return self._caplog.messages

    @property
    def pending(self) -> list[str]:
        begin = "waiting for "
        return [text.removeprefix(begin) for text in self.logged if text.startswith(begin)]


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.005)
