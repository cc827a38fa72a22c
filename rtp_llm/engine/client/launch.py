# SPDX-License-Identifier: Apache-2.0
"""The engine process as its parent sees it: spawn, watch, stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.bound_child import python_path
from rtp_llm.distributed.multicast import NO_MULTICAST
from rtp_llm.engine.address import EngineAddress
from rtp_llm.interrupts import children_leave_interrupts

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.distributed.membership import Membership

# The second argument of a process that has no settings yet.
SPARE = "spare"
_POLL_SECONDS = 0.02
_KILL_WAIT_SECONDS = 5.0


class EngineProcess:
    """A child process that runs the module of the engine.

    Its standard input carries the settings and then stays open: when it closes, the parent is gone
    and the child ends itself.
    """

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @classmethod
    def spawn(
        cls,
        module: str,
        address: EngineAddress,
        settings: Settings | None,
        membership: Membership | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> EngineProcess:
        """Start ``python -m module``, which connects to ``address`` by itself.

        ``settings``: None for a spare, which imports what it needs and waits for `begin`;
        ``membership``: which of several ranks it is; ``environ``: variables that it gets in
        addition to this process's own.
        """
        spare = [SPARE] if settings is None else []
        with children_leave_interrupts():
            child = subprocess.Popen(
                [sys.executable, "-m", module, str(address.folder), *spare],
                stdin=subprocess.PIPE,
                env=_environment()
                | (membership.environment() if membership else dict(NO_MULTICAST))
                | dict(environ or {}),
            )
        process = cls(child)
        if settings is not None:
            process.begin(settings)
        return process

    def begin(self, settings: Settings) -> None:
        """Have it load the model."""
        # The engine needs no secret of the HTTP side.
        shared = dataclasses.replace(settings, api_key=None)
        if self._child.stdin is not None:
            # A process that died at once is noticed later, by its exit code.
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.write(msgspec.json.encode(shared) + b"\n")
                self._child.stdin.flush()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """The process has not ended."""
        return self._child.poll() is None

    def exit_report(self) -> str:
        """How the process ended."""
        code = self._child.returncode
        if code is not None and code < 0:
            return f"the engine process was ended by signal {signal.Signals(-code).name}"
        return f"the engine process ended with exit code {code}"

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        if self.running:
            self._child.kill()

    async def stop(self, timeout: float, kill_timeout: float = _KILL_WAIT_SECONDS) -> bool:
        """Wait up to ``timeout`` seconds for the process to end, then kill it.

        False: ``kill_timeout`` seconds later it is still there, as one that a driver holds.
        """
        ended = await self._ended(timeout)
        if not ended:
            self.kill()
            ended = await self._ended(kill_timeout)
        if self._child.stdin is not None:
            self._child.stdin.close()
        return ended

    def wait(self, timeout: float) -> None:
        """As `stop`, for a caller without an event loop."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            self.kill()
            self._child.wait(_KILL_WAIT_SECONDS)

    async def _ended(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.running:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True


def _environment() -> dict[str, str]:
    """The parent's environment, with this very package importable.

    Torch's own threads (OpenMP's; our kernels have others) sleep between operators unless the user
    says otherwise: they would spin on cores that kernels and other processes want. The library
    reads this when it is loaded, so it must be there before the process starts.
    """
    return {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": python_path()}
