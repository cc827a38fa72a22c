# SPDX-License-Identifier: Apache-2.0
"""The rank of this process among several, as set by launchers such as torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """`local_rank` of `local_world_size` processes on this machine, `world_size` on all machines.

    The first two are None if the launcher does not set them.
    """

    world_size: int = 1
    local_rank: int | None = None
    local_world_size: int | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Ranks:
        """From WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; ValueError names a bad one."""
        return cls(
            world_size=_number(environ, "WORLD_SIZE", least=1) or 1,
            local_rank=_number(environ, "LOCAL_RANK", least=0),
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", least=1),
        )


def _number(environ: Mapping[str, str], name: str, least: int) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}={text!r} is not a whole number of at least {least}")
    return int(text)
