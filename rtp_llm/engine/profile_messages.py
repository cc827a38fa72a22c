# SPDX-License-Identifier: Apache-2.0
"""What the engine process and its client say to each other about the profiler."""

from __future__ import annotations

import msgspec


class Profile(msgspec.Struct, tag="profile", frozen=True, kw_only=True):
    """Start the profiler of the engine process, or stop it."""

    start: bool


class Profiled(msgspec.Struct, tag="profiled", frozen=True, kw_only=True):
    """That was done; ``error`` says why not.

    ``activities`` names what is recorded, of torch.profiler.ProfilerActivity; ``file`` is the trace
    of a profiler that was stopped.
    """

    activities: tuple[str, ...] = ()
    file: str = ""
    error: str = ""


class ProfilerError(RuntimeError):
    """The profiler cannot be started or stopped now; the message says why."""
